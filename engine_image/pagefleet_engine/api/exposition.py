"""`/metrics`: every family of the contract, from a snapshot and the recorder, as Prometheus text."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from pagefleet_api.load import EngineState
from pagefleet_api.metrics import ENGINE, Engine, Kind, Metric
from pagefleet_api.vllm_names import LORA_REQUESTS_INFO, VLLM_ALIASES
from pagefleet_engine.api.recorder import Histogram, LabelValues, Recorder
from pagefleet_engine.api.snapshot import Snapshot
from pagefleet_engine.steps import GpuStatus

Samples = Mapping[LabelValues, float | Histogram]
"""A family's samples by label values, without those of `model_name`."""

_ALIAS_ENGINE = "0"


class EngineCollector:
    """Gives prometheus-client the engine's families; one for each scrape."""

    def __init__(self, model_name: str, snapshot: Snapshot, recorder: Recorder, *, vllm_names: bool) -> None:
        self._model_name = model_name
        self._samples = samples(snapshot, recorder)
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Family]:
        """Own names first, then vLLM's."""
        for metric in ENGINE:
            yield _family(metric, self._labelled(metric, (self._model_name,), len(metric.labels) - 1))
        for alias, metric in VLLM_ALIASES if self._vllm_names else ():
            told = alias if alias in self._samples else metric
            yield _family(alias, self._labelled(told, (_ALIAS_ENGINE, self._model_name), len(alias.labels) - 2))

    def _labelled(
        self, metric: Metric, first: LabelValues, keep: int
    ) -> Iterator[tuple[LabelValues, float | Histogram]]:
        for values, value in self._samples.get(metric, {}).items():
            yield (*first, *values[:keep]), value


def render(model_name: str, snapshot: Snapshot, recorder: Recorder, *, vllm_names: bool) -> bytes:
    """The text of `/metrics`, to be served as `pagefleet_api.metrics.CONTENT_TYPE`."""
    registry = CollectorRegistry(support_collectors_without_names=True)
    registry.register(EngineCollector(model_name, snapshot, recorder, vllm_names=vllm_names))
    return generate_latest(registry)


def samples(snapshot: Snapshot, recorder: Recorder) -> dict[Metric, Samples]:
    """Every family's samples. A gauge is absent while its value is not known; counters begin at 0, but for those of a
    GPU, which are absent where there is none."""
    result: dict[Metric, dict[LabelValues, float | Histogram]] = {
        Engine.REQUESTS_RUNNING: {(): snapshot.running},
        Engine.REQUESTS_WAITING: {(): snapshot.waiting},
        Engine.REQUESTS_WAITING_BY_REASON: _waiting_by_reason(snapshot),
        Engine.SECONDS_SINCE_LAST_STEP: {(): snapshot.seconds_since_last_step},
        Engine.MEMORY_BYTES: _memory(snapshot),
        Engine.ENGINE_STATE: {(state.value,): float(state is snapshot.state) for state in EngineState},
    }
    for metric, values in [*recorder.counters, *recorder.histograms]:
        key = (metric, values)
        value = recorder.counters[key] if metric.kind is Kind.COUNTER else recorder.histograms[key]
        result.setdefault(metric, {})[values] = value
    return {
        **result,
        **_core_counters(snapshot),
        **_recent(snapshot),
        **_pool_gauges(snapshot),
        **_start_gauges(snapshot),
        **_adapters(snapshot),
    }


def _waiting_by_reason(snapshot: Snapshot) -> dict[LabelValues, float | Histogram]:
    """All wait behind the earliest of them: for a seat, or for what a seat needs (KV blocks, room in the step)."""
    status, ready = snapshot.status, snapshot.ready
    full = status is not None and ready is not None and status.running >= ready.max_num_seqs
    return {("seats",): snapshot.waiting if full else 0, ("capacity",): 0 if full else snapshot.waiting}


def _core_counters(snapshot: Snapshot) -> dict[Metric, Samples]:
    status = snapshot.status
    gpu = status and status.gpu
    return {
        Engine.PROMPT_TOKENS_BY_SOURCE: {
            ("computed",): status.prompt_tokens_computed_total if status else 0,
            ("prefix",): status.prompt_tokens_cached_total if status else 0,
        },
        Engine.PREFIX_CACHE_QUERIES: {(): status.prefix_queries_total if status else 0},
        Engine.PREFIX_CACHE_HITS: {(): status.prefix_hits_total if status else 0},
        Engine.PREEMPTIONS: {("recompute",): status.preemptions_total if status else 0},
        Engine.BLOCK_ALLOCATION_FAILURES: {(): status.block_allocation_failures_total if status else 0},
        Engine.CUDA_GRAPH_STEPS: {("true",): gpu.replayed_steps, ("false",): gpu.other_steps} if gpu else {},
    }


def _recent(snapshot: Snapshot) -> dict[Metric, Samples]:
    """What is said of the steps since `snapshot.earlier` alone."""
    now, before = snapshot.status, snapshot.earlier
    if now is None or before is None:
        return {}
    gpu, gpu_before = now.gpu or GpuStatus(), before.gpu or GpuStatus()
    return {
        Engine.PREFILL_DECODE_TOKENS: _ratio(
            now.prefill_tokens_total - before.prefill_tokens_total, now.decode_tokens_total - before.decode_tokens_total
        ),
        Engine.CUDA_GRAPH_PADDING: _ratio(
            gpu.padding_rows - gpu_before.padding_rows, gpu.replayed_rows - gpu_before.replayed_rows
        ),
    }


def _ratio(part: int, whole: int) -> Samples:
    """Absent where there is nothing to compare with."""
    return {(): part / whole} if whole else {}


def _pool_gauges(snapshot: Snapshot) -> dict[Metric, Samples]:
    status, ready = snapshot.status, snapshot.ready
    if status is None or ready is None:
        return {}
    demanded_tokens = status.blocks_used * ready.block_size + status.queued_prompt_tokens
    return {
        Engine.KV_CACHE_USAGE: {(): status.blocks_used / ready.num_blocks},
        Engine.KV_DEMAND: {(): demanded_tokens / (ready.num_blocks * ready.block_size)},
        Engine.KV_BLOCKS: {
            ("used",): status.blocks_used,
            ("cached",): status.blocks_cached,
            ("free",): status.blocks_free,
        },
        Engine.KV_BLOCKS_LEAKED: {(): status.blocks_leaked},
        Engine.CACHE_CONFIG_INFO: {(str(ready.block_size), str(ready.num_blocks), ready.dtype): 1},
    }


def _memory(snapshot: Snapshot) -> dict[LabelValues, float | Histogram]:
    """By kind; what is not known is absent."""
    ready, gpu = snapshot.ready, snapshot.status and snapshot.status.gpu
    now = {"process": snapshot.core_bytes, "allocated": gpu.allocated_bytes if gpu else None}
    sizes = {**(ready.memory_bytes if ready else {}), **now}
    return {(kind,): size for kind, size in sizes.items() if size is not None}


def _start_gauges(snapshot: Snapshot) -> dict[Metric, Samples]:
    ready = snapshot.ready
    if ready is None:
        return {}
    return {
        Engine.STARTUP_PHASE: {(phase,): seconds for phase, seconds in ready.startup_phase_s.items()},
    }


def _adapters(snapshot: Snapshot) -> dict[Metric, Samples]:
    """Once they lie in memory; absent where there are none."""
    adapters = snapshot.adapters
    if snapshot.ready is None or not adapters:
        return {}
    names = ",".join(adapter.name for adapter in adapters)
    return {
        Engine.LORA_ADAPTERS_INFO: {(adapter.name, str(adapter.rank)): 1 for adapter in adapters},
        LORA_REQUESTS_INFO: {(str(len(adapters)), names, ""): 1},
    }


def _family(metric: Metric, series: Iterable[tuple[LabelValues, float | Histogram]]) -> Family:
    """A prometheus-client family; the first label of `metric` is `model_name`, or `engine` before it."""
    family: Family
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    elif metric.kind is Kind.COUNTER:
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for values, value in series:
        if isinstance(value, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(values, buckets=list(value.cumulative()), sum_value=value.total)
        else:
            assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
            family.add_metric(values, value)
    return family
