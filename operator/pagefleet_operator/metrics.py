"""The operator's own metrics, registered from the contract."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from pagefleet_api.metrics import OPERATOR, SERVICE, Kind, Metric, Operator

__all__ = ["Metrics", "Operator"]


class Metrics:
    """Every family of `pagefleet_api.metrics.OPERATOR`, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the contract has no `_created` series
        self._registry = CollectorRegistry()
        self._families = {metric.name: _family(metric, self._registry) for metric in OPERATOR}
        self._series: dict[tuple[str, str], set[tuple[str, tuple[str, ...]]]] = {}

    def set(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Set a gauge; None takes its series away, as an absent value is not 0."""
        family = self._families[metric.name]
        assert isinstance(family, Gauge)
        if value is not None:
            self._noted(metric, labels)
            (family.labels(*labels) if labels else family).set(value)
        elif labels:
            _remove(family, labels)

    def add(self, metric: Metric, *labels: str, amount: float = 1) -> None:
        """Raise a counter."""
        family = self._families[metric.name]
        assert isinstance(family, Counter)
        self._noted(metric, labels)
        (family.labels(*labels) if labels else family).inc(amount)

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one observation to a histogram."""
        family = self._families[metric.name]
        assert isinstance(family, Histogram)
        self._noted(metric, labels)
        (family.labels(*labels) if labels else family).observe(value)

    def forget(self, namespace: str, service: str) -> None:
        """Take away every series of a service that is gone."""
        for name, labels in self._series.pop((namespace, service), set()):
            _remove(self._families[name], labels)

    def exposition(self) -> bytes:
        """The text that `/metrics` answers."""
        return generate_latest(self._registry)

    def _noted(self, metric: Metric, labels: tuple[str, ...]) -> None:
        if SERVICE in metric.labels:
            self._series.setdefault((labels[0], labels[1]), set()).add((metric.name, labels))


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
