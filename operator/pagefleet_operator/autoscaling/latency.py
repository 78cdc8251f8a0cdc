"""How long first tokens took lately, over all pods, since the fleet last changed."""

from functools import reduce
from operator import sub
from typing import NamedTuple

from pagefleet_operator.autoscaling.values import Fleet, Mark, Memory
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.observed import Now

WINDOW_S = 60.0
SPACING_S = 10.0
LEAST_REQUESTS = 20
"""Of fewer, the slowest one alone would be the 95th percentile."""
SHARE = 0.95


class Latency(NamedTuple):
    """The 95th percentile of a time, and what it stands on."""

    p95_s: float
    requests: int
    pods: int
    """Pods that measured."""


def latest(fleet: Fleet, memory: Memory) -> Latency | None:
    """Time to first token since the oldest mark; None while too few requests ended their wait since."""
    if not memory.marks or fleet.ready > memory.ready:
        return None
    before = dict(memory.marks[0].ttft)
    measured = [(pod.ttft, before.get(pod.name)) for pod in fleet.pods if pod.ttft is not None]
    if not measured:
        return None
    total = _together(measured)
    p95_s = total.quantile(SHARE) if total.count >= LEAST_REQUESTS else None
    return None if p95_s is None else Latency(p95_s, round(total.count), len(measured))


def remember(memory: Memory, fleet: Fleet, desired: int, now: Now) -> tuple[Mark, ...]:
    """The marks to keep. They begin anew when the number changes or a pod becomes ready: what requests waited for
    before that was another fleet, and would call for the same pods a second time.
    """
    measured = tuple((pod.name, pod.ttft) for pod in fleet.pods if pod.ttft is not None)
    if not measured:
        return ()
    now_s, mark = now.monotonic_s, Mark(now.monotonic_s, measured)
    if desired != memory.desired or fleet.ready > memory.ready:
        return (mark,)
    kept = tuple(old for old in memory.marks if now_s - old.when_s <= WINDOW_S)
    return (*kept, mark) if not kept or now_s - kept[-1].when_s >= SPACING_S else kept


def _together(measured: list[tuple[Histogram, Histogram | None]]) -> Histogram:
    """What all pods measured since; those with the same buckets, which are most, are added up in one go."""
    alike: dict[tuple[float, ...], list[tuple[float, ...]]] = {}
    for now, then in measured:
        alike.setdefault(now.bounds, []).append(_since(now, then))
    groups = [Histogram(bounds, tuple(map(sum, zip(*rows, strict=True))), 0.0) for bounds, rows in alike.items()]
    return reduce(Histogram.plus, groups)


def _since(now: Histogram, then: Histogram | None) -> tuple[float, ...]:
    """Counts; all of them where the engine began after the mark."""
    if then is None or then.bounds != now.bounds:
        return now.counts
    grown = tuple(map(sub, now.counts, then.counts))
    return now.counts if min(grown) < 0 else grown
