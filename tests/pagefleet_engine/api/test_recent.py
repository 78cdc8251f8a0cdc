"""Recent steps are those of a window of time, whoever looks and how often."""

import pytest
from msgspec.structs import replace

from pagefleet_api.metrics import RECENT_S
from pagefleet_engine.api.recent import STRIDE_S, RecentTotals
from tests.pagefleet_engine.api.test_exposition import STATUS


def decoded(recent: RecentTotals, now: int) -> int:
    """Tokens decoded inside the window, `now` being all."""
    assert recent.earlier is not None
    return now - recent.earlier.decode_tokens_total


def serve(recent: RecentTotals, begin_s: float, seconds: float, *, step_s: float, tokens: int, total: int) -> int:
    """Steps of so many tokens, one after the other; the new total."""
    for step in range(round(seconds / step_s)):
        total += tokens
        recent.note(replace(STATUS, decode_tokens_total=total), begin_s + step * step_s)
    return total


def test_nothing_is_known_before_the_core_has_said_anything() -> None:
    assert RecentTotals().earlier is None


@pytest.mark.parametrize("step_s", [0.01, 0.4, 3.0])
def test_the_window_is_the_same_for_steps_of_any_length(step_s: float) -> None:
    recent = RecentTotals()
    total = serve(recent, 0.0, 300.0, step_s=step_s, tokens=1, total=0)
    steps = decoded(recent, total)
    assert RECENT_S <= steps * step_s <= RECENT_S + STRIDE_S + 2 * step_s


def test_what_was_before_the_window_is_forgotten_however_much_it_was() -> None:
    recent = RecentTotals()
    busy = serve(recent, 0.0, 100.0, step_s=0.01, tokens=50, total=0)
    total = serve(recent, 100.0, RECENT_S + 2 * STRIDE_S, step_s=0.1, tokens=1, total=busy)
    assert decoded(recent, total) <= 10 * (RECENT_S + 2 * STRIDE_S)


def test_a_window_without_steps_has_nothing_in_it() -> None:
    recent = RecentTotals()
    total = serve(recent, 0.0, 10.0, step_s=0.01, tokens=5, total=0)
    for beat in range(round((RECENT_S + 2 * STRIDE_S) / 0.25)):
        recent.note(replace(STATUS, decode_tokens_total=total), 10.0 + 0.25 * beat)
    assert decoded(recent, total) == 0


def test_a_step_longer_than_the_window_is_inside_it_whole() -> None:
    recent = RecentTotals()
    recent.note(replace(STATUS, decode_tokens_total=7), 0.0)
    recent.note(replace(STATUS, decode_tokens_total=8), 3 * RECENT_S)
    assert decoded(recent, 8) == 1


def test_no_more_is_kept_than_the_window_needs() -> None:
    recent = RecentTotals()
    serve(recent, 0.0, 300.0, step_s=0.01, tokens=1, total=0)
    assert len(recent._kept) <= RECENT_S / STRIDE_S + 2
