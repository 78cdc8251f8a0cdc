"""How fast answers end while others wait, and what refused clients are told."""

import math

import pytest

from pagefleet_engine.api.turnover import LEAST_S, MOST_S, Turnover


def ended(times_s: list[float], *, others_wait: bool = True) -> Turnover:
    turnover = Turnover()
    for time_s in times_s:
        turnover.end(time_s, others_wait=others_wait)
    return turnover


def test_one_end_says_nothing_and_a_row_of_them_how_fast_they_come() -> None:
    assert ended([]).per_s(9) is None
    assert ended([3]).per_s(9) is None
    assert ended([2.0 * number for number in range(9)]).per_s(16) == pytest.approx(0.5)


def test_ends_of_an_engine_on_which_nobody_waits_say_nothing() -> None:
    assert ended([0, 10, 20], others_wait=False).per_s(20) is None
    turnover = ended([0, 2, 4])
    turnover.end(6, others_wait=False)
    turnover.end(600, others_wait=True)
    assert turnover.per_s(600) == pytest.approx(0.5)


def test_the_latest_half_minute_counts_most() -> None:
    times = [10.0 * number for number in range(10)] + [90 + 1.0 * number for number in range(1, 91)]
    assert ended(times).per_s(180) == pytest.approx(1, rel=0.1)


def test_a_pause_that_is_longer_than_usual_counts_before_it_is_over() -> None:
    turnover = ended([0, 1, 2, 3])
    assert turnover.per_s(4) == pytest.approx(1, rel=0.01)
    assert turnover.per_s(3 + 37) == pytest.approx(0.1, rel=0.05)


def test_ends_of_one_moment_have_no_pace_until_time_passes() -> None:
    turnover = ended([5, 5, 5])
    assert turnover.per_s(5) == math.inf
    assert turnover.come_back_s(3, 5, None, turn=99) == LEAST_S
    assert turnover.per_s(8) == pytest.approx(1)


def test_who_comes_later_is_told_a_later_moment_up_to_a_minute() -> None:
    turnover = ended([0, 2, 4])
    told = [turnover.come_back_s(1, 4, None, turn=99) for _ in range(40)]
    assert told[:3] == pytest.approx([2, 4, 6])
    assert told == sorted(told)
    assert told[-1] == MOST_S
    assert turnover.come_back_s(1, 70, None, turn=99) < MOST_S  # what was told is over


def test_without_a_measure_the_usual_pace_counts_and_without_that_a_second() -> None:
    assert Turnover().come_back_s(5, 0, None, turn=99) == LEAST_S
    assert Turnover().come_back_s(5, 0, 0.5, turn=99) == 10
    assert Turnover().come_back_s(1, 0, 50, turn=99) == LEAST_S


def test_nobody_is_put_off_for_longer_than_all_who_are_in_take() -> None:
    turnover = ended([0.1 * number for number in range(50)])
    told = [turnover.come_back_s(1, 5, None, turn=40) for _ in range(1000)]
    assert told[-1] == pytest.approx(4, rel=0.1)
    assert turnover.come_back_s(80, 5, None, turn=40) == pytest.approx(8, rel=0.1)


def test_what_was_told_is_over_when_there_is_room() -> None:
    turnover = ended([0, 2, 4])
    assert [turnover.come_back_s(9, 4, None, turn=99) for _ in range(2)] == pytest.approx([18, 36])
    turnover.room()
    assert turnover.come_back_s(1, 4, None, turn=99) == pytest.approx(2)
