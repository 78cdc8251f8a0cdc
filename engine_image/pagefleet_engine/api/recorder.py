"""What the API process counts and measures, until `/metrics` is read."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from pagefleet_api.metrics import Engine, Metric
from pagefleet_engine.api.errors import REJECTION_REASONS
from pagefleet_engine.wire import StepTimes

OUTCOMES = ("stop", "length", "abort", "error")
LabelValues = tuple[str, ...]
"""Values of a family's labels without `model_name`, in the family's order."""

_COUNTERS: dict[Metric, tuple[LabelValues, ...]] = {
    Engine.PROMPT_TOKENS: ((),),
    Engine.GENERATION_TOKENS: ((),),
    Engine.REQUESTS: tuple((outcome,) for outcome in OUTCOMES),
    Engine.REJECTIONS: tuple((reason,) for reason in REJECTION_REASONS),
    Engine.CLIENT_DISCONNECTS: ((),),
}
_HISTOGRAMS: dict[Metric, tuple[LabelValues, ...]] = {
    Engine.TIME_TO_FIRST_TOKEN: ((),),
    Engine.INTER_TOKEN_LATENCY: ((),),
    Engine.REQUEST_QUEUE: ((),),
    Engine.REQUEST_PREFILL: ((),),
    Engine.REQUEST_DECODE: ((),),
    Engine.REQUEST_INFERENCE: ((),),
    Engine.REQUEST_DURATION: ((),),
    Engine.REQUEST_PROMPT_TOKENS: ((),),
    Engine.REQUEST_GENERATION_TOKENS: ((),),
    Engine.STEP_PHASE: (("schedule",), ("forward",)),
    Engine.BATCH_TOKENS: ((),),
}


class Histogram:
    """Counts by bucket; cheap enough for every token."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Add one value; it belongs to the first bucket whose bound it does not pass."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Values seen."""
        return sum(self._counts)

    @property
    def mean(self) -> float | None:
        """Mean of the values, None before the first."""
        count = self.count
        return self.total / count if count else None

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """(upper bound as Prometheus writes it, values up to it), ending with +Inf."""
        seen = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            seen += count
            yield ("+Inf" if bound == float("inf") else str(float(bound))), seen


class Recorder:
    """Counters and histograms of one engine; every label value exists from the start, at 0."""

    def __init__(self) -> None:
        self.generation_tokens = 0
        """Raised for every token, so without the way through `count`."""
        self._counters: dict[tuple[Metric, LabelValues], float] = {
            (metric, values): 0.0 for metric, series in _COUNTERS.items() for values in series
        }
        self.histograms: dict[tuple[Metric, LabelValues], Histogram] = {
            (metric, values): Histogram(metric.buckets) for metric, series in _HISTOGRAMS.items() for values in series
        }
        self.inter_token = self.histograms[Engine.INTER_TOKEN_LATENCY, ()]

    @property
    def counters(self) -> Mapping[tuple[Metric, LabelValues], float]:
        """Every counter by family and label values."""
        self._counters[Engine.GENERATION_TOKENS, ()] = self.generation_tokens
        return self._counters

    def count(self, metric: Metric, *values: str, by: float = 1) -> None:
        """Raise a counter; `values` are those of its labels after `model_name`, known at the start."""
        self._counters[metric, values] += by

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add a value to a histogram; a negative one, of clocks read out of order, counts as 0."""
        self.histograms[metric, labels].observe(max(value, 0.0))

    def step(self, times: StepTimes) -> None:
        """Take the times of one step."""
        self.observe(Engine.STEP_PHASE, times.schedule_s, "schedule")
        self.observe(Engine.STEP_PHASE, times.forward_s, "forward")
        self.observe(Engine.BATCH_TOKENS, times.batch_tokens)

    def mean(self, metric: Metric) -> float | None:
        """Mean of a histogram without labels."""
        return self.histograms[metric, ()].mean
