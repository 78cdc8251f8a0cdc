"""How long first tokens took lately, over all pods, since the fleet last changed."""

from typing import NamedTuple

from pagefleet_operator.autoscaling.values import Fleet, Mark, Memory
from pagefleet_operator.histogram import Histogram
from pagefleet_operator.observed import Now

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
    grown = [_since(pod.ttft, before.get(pod.name)) for pod in fleet.pods if pod.ttft is not None]
    if not grown:
        return None
    total = grown[0]
    for one in grown[1:]:
        total = total.plus(one)
    p95_s = total.quantile(SHARE) if total.count >= LEAST_REQUESTS else None
    return None if p95_s is None else Latency(p95_s, round(total.count), len(grown))


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


def _since(now: Histogram, then: Histogram | None) -> Histogram:
    """All of it where the engine began after the mark."""
    return now if then is None else now.minus(then) or now
