"""Events on an InferenceService: the value that every decision gives, and which change of a status is one. Pure."""

from typing import NamedTuple

from pagefleet_api.reasons import ConditionType, EventReason, Reason
from pagefleet_api.status import Condition, Status

_WARNINGS = frozenset({EventReason.DRAIN_TIMED_OUT, EventReason.NOT_READY, EventReason.INVALID_SPEC})


class News(NamedTuple):
    """An Event on an InferenceService: its reason and its words."""

    reason: EventReason
    message: str

    @property
    def warning(self) -> bool:
        """Somebody should look at it."""
        return self.reason in _WARNINGS


def turn(before: Status, after: Status) -> News | None:
    """The Event of a service that became ready, is ready no more, or cannot be read; None for every other change.

    A service that has never been ready is only starting, and one that was paused does what it was asked for.
    """
    old, new = _ready(before), _ready(after)
    if new is None or (old is not None and (old.status, old.reason) == (new.status, new.reason)):
        return None
    if new.reason == Reason.INVALID_SPEC:
        return News(EventReason.INVALID_SPEC, new.message)
    was_ready = old is not None and old.status == "True"
    if new.status == "True":
        return None if was_ready else News(EventReason.READY, new.message)
    if was_ready and new.reason != Reason.PAUSED:
        return News(EventReason.NOT_READY, f"{new.reason}: {new.message}")
    return None


def _ready(status: Status) -> Condition | None:
    return next((condition for condition in status.conditions if condition.type == ConditionType.READY), None)
