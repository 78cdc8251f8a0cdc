"""Which changes of a status become Events."""

from datetime import UTC, datetime, timedelta

import pytest

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.status import Condition, Status
from pagefleet_operator.news import Ration, turn


def _status(state: str | None, reason: Reason = Reason.SERVING) -> Status:
    if state is None:
        return Status()
    condition = {"type": "Ready", "status": state, "reason": reason, "message": "m", "lastTransitionTime": "t"}
    return Status(conditions=(Condition.model_validate(condition),))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (_status(None), _status("False", Reason.STARTING), None),
        (_status(None), _status("False", Reason.READING_MODEL), None),
        (_status("False", Reason.READING_MODEL), _status("False", Reason.MODEL_NOT_CACHED), None),
        (_status("False", Reason.STARTING), _status("True"), EventReason.READY),
        (_status(None), _status("True"), EventReason.READY),
        (_status("True"), _status("True"), None),
        (_status("True"), _status("False", Reason.CRASH_LOOP), EventReason.NOT_READY),
        (_status("False", Reason.STARTING), _status("False", Reason.CRASH_LOOP), EventReason.NOT_READY),
        (_status("False", Reason.CRASH_LOOP), _status("False", Reason.CRASH_LOOP), None),
        (_status("False", Reason.CRASH_LOOP), _status("False", Reason.STARTING), None),
        (_status("True"), _status("False", Reason.STARTING), EventReason.NOT_READY),
        (_status("True"), _status("False", Reason.PAUSED), None),
        (_status(None), _status("False", Reason.INVALID_SPEC), EventReason.INVALID_SPEC),
        (_status("False", Reason.INVALID_SPEC), _status("False", Reason.INVALID_SPEC), None),
        (_status("True"), _status(None), None),
    ],
    ids=[
        "first-start",
        "reads-first",
        "fetches-first",
        "becomes-ready",
        "ready-at-once",
        "stays",
        "breaks",
        "another-cause",
        "still-not",
        "starts-again",
        "starts-over",
        "paused",
        "invalid",
        "still-invalid",
        "nothing-known",
    ],
)
def test_a_turn_is_told_once(before: Status, after: Status, expected: EventReason | None) -> None:
    news = turn(before, after)
    assert (None if news is None else news.reason) is expected


def test_a_flapping_service_gets_a_burst_of_events_and_then_one_every_five_minutes() -> None:
    now, ration, told = datetime(2026, 1, 1, tzinfo=UTC), Ration(), 0
    for _ in range(3600):
        now += timedelta(seconds=1)
        rest = ration.spent(now)
        told, ration = (told, ration) if rest is None else (told + 1, rest)
    assert told == 20 + 11


def test_a_calm_hour_fills_the_ration_again_and_a_clock_that_jumps_back_takes_nothing() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    low = Ration(1.0, now)
    assert (low.spent(now + timedelta(days=1)) or low).left == 19
    assert (low.spent(now - timedelta(days=1)) or low).left == 0


def test_a_crash_is_told_once_and_its_end_is_no_news() -> None:
    crash = {"type": "Stalled", "status": "True", "reason": "InternalError", "message": "m", "lastTransitionTime": "t"}
    quiet = _status("True")
    crashed = Status(conditions=(*quiet.conditions, Condition.model_validate(crash)))
    news = turn(quiet, crashed)
    assert news is not None and news.reason is EventReason.INTERNAL_ERROR and news.warning
    assert turn(crashed, crashed) is None
    assert turn(crashed, quiet) is None
