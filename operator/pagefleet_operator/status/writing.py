"""When a status is worth a write."""

from datetime import timedelta
from typing import Any

from pagefleet_api.status import Decision, Status
from pagefleet_operator.facts.observed import Now, parse_time

DECISION_INTERVAL = timedelta(minutes=1)
"""A decision that differs only in its inputs is written at most so often; `/decisions` has every one."""


def worth_writing(old: Status, new: Status, now: Now) -> bool:
    """Whether `new` tells a reader something that `old` (the live status) does not.

    The targets' text and a decision's inputs move with every sample: they wait for their minute. All
    else counts at once: counts, conditions, the number, its reason, which clamps bind, the generation.
    """
    if _lasting(old) != _lasting(new) or _gist(old) != _gist(new):
        return True
    return _passing(old) != _passing(new) and _minute_over(old, now)


def _lasting(status: Status) -> dict[str, Any]:
    return status.model_dump(exclude={"targets": True, "autoscaling": {"last_decision"}})


def _decision(status: Status) -> Decision | None:
    return None if status.autoscaling is None else status.autoscaling.last_decision


def _gist(status: Status) -> tuple[object, ...]:
    decision = _decision(status)
    if decision is None:
        return ()
    return decision.desired, decision.reason, tuple(clamp.partition(":")[0] for clamp in decision.clamps)


def _passing(status: Status) -> tuple[object, ...]:
    decision = _decision(status)
    return status.targets, decision and decision.model_copy(update={"time": ""})


def _minute_over(status: Status, now: Now) -> bool:
    decision = _decision(status)
    written = None if decision is None else parse_time(decision.time)
    return written is None or now.wall - written >= DECISION_INTERVAL
