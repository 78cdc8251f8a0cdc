"""PromQL made from the metric contract; every name and label comes from there. Pure.

`$namespace`, `$service`, `$__range`, `$__interval` and `$__rate_interval` are Grafana's to fill in.
"""

from pagefleet_api.metrics import ENGINE, MODEL, NAMESPACE, SERVICE, Kind, Metric, Operator

INSTANCE = "instance"
"""The one label that Prometheus itself puts on every series."""
OWNER = f"{NAMESPACE}, {SERVICE}"
LEGEND = f"{{{{{NAMESPACE}}}}}/{{{{{SERVICE}}}}}"
"""A legend that names the service."""

_BRIDGED_GAP = "1h"
_CHOSEN = f'{NAMESPACE}=~"$namespace", {SERVICE}=~"$service"'


def selector(metric: Metric, series: str | None = None, **labels: str) -> str:
    """The series of `metric` for the chosen services; `labels` are further equality matchers.

    Raises ValueError for a label that the metric does not have.
    """
    unknown = set(labels) - set(metric.labels)
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(sorted(unknown))}")
    about_a_service = metric in ENGINE or SERVICE in metric.labels
    matchers = [_CHOSEN] if about_a_service else []
    matchers += [f'{name}="{value}"' for name, value in labels.items()]
    return f"{series or metric.name}{{{', '.join(matchers)}}}" if matchers else series or metric.name


def rate(metric: Metric, by: str | None = None, **labels: str) -> str:
    """Increase of a counter per second. Raises ValueError for another kind."""
    _require(metric, Kind.COUNTER)
    return f"{_sum(by)} (rate({selector(metric, **labels)}[$__rate_interval]))"


def quantile(metric: Metric, share: float) -> str:
    """The `share` quantile (0..1) of a histogram over the chosen services. Raises ValueError for another kind."""
    _require(metric, Kind.HISTOGRAM)
    bucket, _, _ = metric.series
    return f"histogram_quantile({share}, sum by (le) (rate({selector(metric, bucket)}[$__rate_interval])))"


def gauge(metric: Metric, by: str | None = None, **labels: str) -> str:
    """Sum of a gauge. Raises ValueError for another kind."""
    _require(metric, Kind.GAUGE)
    return f"{_sum(by)} ({selector(metric, **labels)})"


def led(metric: Metric) -> str:
    """An operator's gauge of each service as the holder of the Lease tells it; a standby's old value does not count."""
    _require(metric, Kind.GAUGE)
    leading = f"{Operator.LEADER.name} == 1"
    return f"max by ({OWNER}) ({selector(metric)} and on ({INSTANCE}) ({leading}))"


def total(metric: Metric, **labels: str) -> str:
    """What a counter counted inside the shown range: whole events, where `increase()` extrapolates.

    Steps through the range and adds what each step added. A process that was not there a step ago (its pod is
    new) or had counted more (its container restarted) counts from 0. A pod that left keeps what it had counted.
    Looking back an hour for the last value bridges failed scrapes; without it a process would count twice after a
    gap. The series of one process are summed first: they begin anew together, and matching is what costs.
    Raises ValueError for another kind.
    """
    _require(metric, Kind.COUNTER)
    window = f"{selector(metric, **labels)}[{_BRIDGED_GAP}]"
    own = [name for name in metric.labels if name not in (MODEL, NAMESPACE, SERVICE)]
    each = f"sum without ({', '.join(own)}) " if own else ""
    now = f"{each}(last_over_time({window}))"
    before = f"{each}(last_over_time({window} offset $__interval))"
    added = f"{now} - (({before} <= {now}) or {now} * 0)"
    return f"sum (sum_over_time(({added})[$__range:$__interval]))"


def _sum(by: str | None) -> str:
    return "sum" if by is None else f"sum by ({by})"


def _require(metric: Metric, kind: Kind) -> None:
    if metric.kind is not kind:
        raise ValueError(f"{metric.name} is a {metric.kind}, not a {kind}")
