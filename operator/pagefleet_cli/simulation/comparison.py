"""How far two timelines agree, a predicted one and a real one for example."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pagefleet_cli.simulation.values import Moment


class Agreement(NamedTuple):
    """Of the time that was compared."""

    desired: float
    """Share, 0..1, in which the wanted numbers differ by no more than was allowed."""
    replicas: float
    """The same of the pods that are ready."""


def agreement(one: Sequence[Moment], other: Sequence[Moment], until_s: float, *, within: int = 1) -> Agreement:
    """From the later of the two beginnings to `until_s`; raises ValueError when nothing lies between."""
    since_s = max(one[0].t, other[0].t)
    if until_s <= since_s:
        raise ValueError(f"the timelines begin at {since_s:g} s, so nothing can be compared until {until_s:g} s")
    turns = {moment.t for moment in (*one, *other) if since_s < moment.t < until_s}
    desired_s = replicas_s = 0.0
    for begin_s, end_s in pairwise(sorted({since_s, until_s, *turns})):
        first, second = _at(one, begin_s), _at(other, begin_s)
        desired_s += (end_s - begin_s) * (abs(first.desired - second.desired) <= within)
        replicas_s += (end_s - begin_s) * (abs(first.replicas - second.replicas) <= within)
    return Agreement(desired_s / (until_s - since_s), replicas_s / (until_s - since_s))


def _at(timeline: Sequence[Moment], when_s: float) -> Moment:
    return [moment for moment in timeline if moment.t <= when_s][-1]
