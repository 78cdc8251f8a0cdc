"""The end of a pod's life, as a table."""

import pytest

from pagefleet_engine.api.drain import GRACE_S, DrainState, Ending, Intake

SERVING = DrainState()
DRAINED = SERVING.drain(100.0)
TERMINATING = SERVING.signal(100.0)


@pytest.mark.parametrize(
    ("state", "now_s", "intake"),
    [
        (SERVING, 0.0, Intake.SERVE),
        (DRAINED, 100.0, Intake.SERVE_AND_CLOSE),
        (DRAINED, 100.0 + GRACE_S - 0.01, Intake.SERVE_AND_CLOSE),
        (DRAINED, 100.0 + GRACE_S, Intake.REFUSE),
        (TERMINATING, 101.0, Intake.SERVE_AND_CLOSE),
        (TERMINATING, 106.0, Intake.REFUSE),
        (TERMINATING.signal(101.0), 101.0, Intake.REFUSE),
    ],
)
def test_new_requests_are_served_for_the_grace_and_then_refused(
    state: DrainState, now_s: float, intake: Intake
) -> None:
    assert state.intake(now_s) is intake


@pytest.mark.parametrize(
    ("state", "now_s", "open_requests", "ending"),
    [
        (SERVING, 1e9, 0, Ending.STAY),
        (DRAINED, 1e9, 0, Ending.STAY),
        (TERMINATING, 100.0, 0, Ending.STAY),
        (TERMINATING, 104.9, 0, Ending.STAY),
        (TERMINATING, 105.0, 0, Ending.LEAVE),
        (TERMINATING, 109.9, 3, Ending.STAY),
        (TERMINATING, 110.0, 3, Ending.CUT),
        (TERMINATING, 110.0, 0, Ending.LEAVE),
        (DRAINED.signal(200.0), 200.0, 0, Ending.LEAVE),
        (DRAINED.signal(109.0), 109.0, 1, Ending.STAY),
        (DRAINED.signal(109.0), 110.0, 1, Ending.CUT),
        (DRAINED.signal(200.0), 200.0, 1, Ending.CUT),
        (DRAINED.signal(102.0), 104.0, 0, Ending.STAY),
        (DRAINED.signal(102.0), 105.0, 0, Ending.LEAVE),
        (TERMINATING.signal(100.1), 100.1, 3, Ending.CUT),
        (TERMINATING.signal(100.1), 100.1, 0, Ending.LEAVE),
    ],
)
def test_the_process_leaves_when_idle_after_the_grace_and_cuts_when_its_time_is_up(
    state: DrainState, now_s: float, open_requests: int, ending: Ending
) -> None:
    assert state.ending(now_s, open_requests=open_requests, drain_timeout_s=10, was_ready=True) is ending


def test_a_drain_timeout_shorter_than_the_grace_holds() -> None:
    assert TERMINATING.ending(101.0, open_requests=1, drain_timeout_s=1, was_ready=True) is Ending.CUT


def test_a_process_that_never_was_ready_leaves_at_once() -> None:
    assert TERMINATING.ending(100.0, open_requests=0, drain_timeout_s=10, was_ready=False) is Ending.LEAVE


def test_a_second_drain_does_not_start_the_clock_again() -> None:
    assert DRAINED.drain(104.0) == DRAINED


def test_undrain_serves_again_until_the_process_was_told_to_end() -> None:
    assert DRAINED.undrain() == SERVING
    assert TERMINATING.undrain() is None


def test_draining_is_not_ready() -> None:
    assert (SERVING.draining, DRAINED.draining, TERMINATING.draining) == (False, True, True)
