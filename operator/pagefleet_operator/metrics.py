"""The operator's own metrics, registered from the contract."""

from collections.abc import Iterable
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from pagefleet_api.metrics import OPERATOR, SERVICE, Kind, Metric, Operator
from pagefleet_operator.facts.starts import PHASES

__all__ = ["Metrics", "Operator"]

_SCRAPE_REASONS = ("timeout", "refused", "broken", "malformed", "too_large", "http_503")
"""The usual ones; another HTTP status is a reason of its own."""

_BORN: tuple[tuple[Metric, Iterable[tuple[str, ...]]], ...] = (
    (Operator.SCALE_EVENTS, tuple(product(("up", "down"), ("spec", "autoscaler")))),
    (Operator.SCRAPE_ERRORS, tuple((reason,) for reason in _SCRAPE_REASONS)),
    (Operator.DRAIN, ((),)),
    (Operator.COLD_START, tuple((phase,) for phase in PHASES)),
    (Operator.DRAIN_ABORTED, ((),)),
)
"""What is counted for a service, with its other labels. It starts at 0: a counter that is born with its first event
shows no increase for it."""


class Metrics:
    """Every family of `pagefleet_api.metrics.OPERATOR`, in a registry of its own.

    A service has series from `begin` to `forget`; what is said of it outside of that is dropped, as a pass may still
    run when another replica has taken over.
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the contract has no `_created` series
        self._registry = CollectorRegistry()
        self._families = {metric.name: _family(metric, self._registry) for metric in OPERATOR}
        self._series: dict[tuple[str, str], set[tuple[str, tuple[str, ...]]]] = {}

    def begin(self, namespace: str, service: str) -> None:
        """Export a service's series from now on, its counters at 0 or where they are."""
        self._series.setdefault((namespace, service), set())
        for metric, others in _BORN:
            for other in others:
                self._child(metric, (namespace, service, *other))

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Set a gauge; None takes its series away, as an absent value is not 0."""
        if value is None:
            if labels:
                _remove(self._families[metric.name], labels)
            return
        child = self._child(metric, labels)
        if child is not None:
            assert isinstance(child, Gauge)
            child.set(value)

    def add(self, metric: Metric, *labels: str, amount: float = 1) -> None:
        """Raise a counter."""
        child = self._child(metric, labels)
        if child is not None:
            assert isinstance(child, Counter)
            child.inc(amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one observation to a histogram."""
        child = self._child(metric, labels)
        if child is not None:
            assert isinstance(child, Histogram)
            child.observe(value)

    def forget(self, namespace: str, service: str) -> None:
        """Take away every series of a service that is gone."""
        for name, labels in self._series.pop((namespace, service), set()):
            _remove(self._families[name], labels)

    def exposition(self) -> bytes:
        """The text that `/metrics` answers."""
        return generate_latest(self._registry)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> "Family | None":
        """The series to write to; None when it is of a service that has none."""
        family = self._families[metric.name]
        if SERVICE in metric.labels:
            series = self._series.get((labels[0], labels[1]))
            if series is None:
                return None
            series.add((metric.name, labels))
        return family.labels(*labels) if labels else family


Family = Gauge | Counter | Histogram


def _family(metric: Metric, registry: CollectorRegistry) -> Family:
    if metric.kind is Kind.GAUGE:
        return Gauge(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind is Kind.COUNTER:
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)


def _remove(family: Family, labels: tuple[str, ...]) -> None:
    try:
        family.remove(*labels)
    except KeyError:
        return
