"""The orders in which those who wait take their turn, by the names that the launch has for them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pagefleet_engine.scheduler.fair import FairLine
from pagefleet_engine.scheduler.ranked import PriorityLine, ShortestLine
from pagefleet_engine.scheduler.waiting import ArrivalLine, WaitingLine


class Policy(NamedTuple):
    """`line` makes the line of those who wait.

    When blocks run out, the latest who was seated gives way; with `by_rank`, it is the one that the line ranks last.
    """

    line: Callable[[], WaitingLine]
    by_rank: bool = False


FCFS = Policy(ArrivalLine)
POLICIES: Mapping[str, Policy] = {
    "fcfs": FCFS,
    "priority": Policy(PriorityLine, by_rank=True),
    "sjf": Policy(ShortestLine),
    "fair": Policy(FairLine),
}
