"""However many connections are refused, the log has a line a second for each cause, and none is left out."""

from collections.abc import Callable
from typing import Any

import pytest

from pagefleet_engine.api.refusal_log import Refusal, RefusalLog

FULL = Refusal(503, "too_many_connections", "5 connections are open.")
STALLED = Refusal(408, "head_stalled", "The head took more than 10 s.")


class Later:
    """A loop whose time goes on when a test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call(self, delay_s: float, work: Callable[[], None]) -> None:
        assert delay_s == 1.0
        self.due.append(work)

    def pass_a_second(self) -> None:
        due, self.due = self.due, []
        for work in due:
            work()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[Any, ...]]]:
    caplog.set_level("INFO", "pagefleet_engine")

    def lines() -> list[tuple[Any, ...]]:
        found = [record.__dict__ for record in caplog.records if record.message == "connection_refused"]
        caplog.clear()
        return [(each["status"], each["code"], each["connections"]) for each in found]

    return lines


def test_one_refusal_is_told_at_once_and_a_flood_in_a_line_a_second(told: Callable[[], list[tuple[Any, ...]]]) -> None:
    later = Later()
    refusals = RefusalLog(later.call)
    refusals.add(FULL)
    assert told() == [(503, "too_many_connections", 1)]
    for _ in range(500):
        refusals.add(FULL)
    refusals.add(STALLED)
    assert told() == []
    later.pass_a_second()
    assert told() == [(503, "too_many_connections", 500), (408, "head_stalled", 1)]
    refusals.add(STALLED)
    assert told() == [], "the second that follows is quiet too"
    later.pass_a_second()
    assert told() == [(408, "head_stalled", 1)]


def test_after_a_quiet_second_the_next_one_is_told_at_once(told: Callable[[], list[tuple[Any, ...]]]) -> None:
    later = Later()
    refusals = RefusalLog(later.call)
    refusals.add(FULL)
    later.pass_a_second()
    assert later.due == [], "nothing is looked at while nobody is refused"
    refusals.add(FULL)
    assert told() == [(503, "too_many_connections", 1)] * 2
