"""Which changes of a status become Events."""

import pytest

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.status import Condition, Status
from pagefleet_operator.news import turn


def _status(state: str | None, reason: Reason = Reason.SERVING) -> Status:
    if state is None:
        return Status()
    condition = {"type": "Ready", "status": state, "reason": reason, "message": "m", "lastTransitionTime": "t"}
    return Status(conditions=(Condition.model_validate(condition),))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (_status(None), _status("False", Reason.STARTING), None),
        (_status("False", Reason.STARTING), _status("True"), EventReason.READY),
        (_status(None), _status("True"), EventReason.READY),
        (_status("True"), _status("True"), None),
        (_status("True"), _status("False", Reason.CRASH_LOOP), EventReason.NOT_READY),
        (_status("False", Reason.STARTING), _status("False", Reason.CRASH_LOOP), None),
        (_status("True"), _status("False", Reason.PAUSED), None),
        (_status(None), _status("False", Reason.INVALID_SPEC), EventReason.INVALID_SPEC),
        (_status("False", Reason.INVALID_SPEC), _status("False", Reason.INVALID_SPEC), None),
        (_status("True"), _status(None), None),
    ],
    ids=[
        "first-start",
        "becomes-ready",
        "ready-at-once",
        "stays",
        "breaks",
        "still-not",
        "paused",
        "invalid",
        "still-invalid",
        "nothing-known",
    ],
)
def test_a_turn_is_told_once(before: Status, after: Status, expected: EventReason | None) -> None:
    news = turn(before, after)
    assert (None if news is None else news.reason) is expected
