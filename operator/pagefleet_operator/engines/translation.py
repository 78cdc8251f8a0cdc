"""What an engine that is not ours says in its own words, in ours (pure). An absent name is a missing number."""

from collections.abc import Sequence

from pagefleet_api.load import Load
from pagefleet_api.runtimes import MetricNames, Series, Sum
from pagefleet_operator.engines.exposition import MOST, Exposition
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.latencies import Latencies


def load(told: Exposition, names: MetricNames) -> Load:
    """The load that an exposition tells; what cannot be (below 0) is missing.

    Several series of one name (ranks, data-parallel engines) are added up; of shares and block sizes it is the mean.
    """
    share, size = _mean(told, names.kv_usage), _mean(told, names.block_size)
    born = (total(told, each) is not None for each in (names.running, names.waiting, names.ended))
    unused = names.born_by_use and not any(born)
    return Load(
        running=0 if unused else _whole(total(told, names.running)),
        waiting=0 if unused else _whole(total(told, names.waiting)),
        kv_share=share,
        block_size=_whole(size) or None,
        blocks_total=_whole(total(told, names.blocks)) or None,
    )


def latencies(told: Exposition, names: MetricNames, *, restarts: int) -> Latencies:
    """What an exposition tells of answers since the container `restarts` began.

    A failure that is counted under a label of its own has no series before the first one: then there was none.
    """
    ended = total(told, names.ended)
    failed = total(told, names.failed)
    if failed is None and ended is not None and names.failed:
        failed = 0.0
    return Latencies(
        histogram(told, names.ttft), histogram(told, names.itl), ended, failed, restarts, total(told, names.weights)
    )


def total(told: Exposition, choices: Sequence[Sum]) -> float | None:
    """Sum over the first choice that is there; None when none is."""
    values = _values(told, choices)
    return sum(values) if values else None


def histogram(told: Exposition, families: Sequence[str]) -> Histogram | None:
    """The first of these families that is there."""
    found = (told.histogram(family) for family in families)
    return next((one for one in found if one is not None), None)


def _mean(told: Exposition, choices: Sequence[Sum]) -> float | None:
    values = _values(told, choices)
    return sum(values) / len(values) if values else None


def _values(told: Exposition, choices: Sequence[Sum]) -> list[float]:
    for first, *more in choices:
        values = _told(told, first)
        if values:
            every = values + [value for series in more for value in _told(told, series)]
            return every if min(every) >= 0 else []
    return []


def _told(told: Exposition, series: Series) -> list[float]:
    found = told.series(series.name, **(series.labels or {}))
    if series.told_in is None:
        return [one.value for one in found]
    numbers = (_number(one.labels.get(series.told_in, "")) for one in found)
    return [number for number in numbers if number is not None]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= MOST else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
