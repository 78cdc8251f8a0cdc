"""Who may wait, and how long a refused client should."""

import pytest

from pagefleet_engine.api.queueing import capacity, retry_after_s


@pytest.mark.parametrize(
    ("running", "waiting", "room"),
    [(0, 0, 12), (3, 0, 12), (8, 0, 12), (8, 1, 12), (2, 1, 6), (0, 1, 4)],
)
def test_the_queue_is_bounded_beyond_the_seats_that_are_really_taken(running: int, waiting: int, room: int) -> None:
    assert capacity(max_num_seqs=8, max_queued=4, running=running, waiting=waiting) == room


@pytest.mark.parametrize(
    ("waiting", "seats", "mean_duration_s", "seconds"),
    [
        (0, 4, None, 1.0),
        (9, 4, None, 1.0),
        (1, 4, 0.2, 1.0),
        (0, 4, 20.0, 5.0),
        (4, 4, 20.0, 20.0),
        (1000, 4, 20.0, 60.0),
        (3, 0, 5.0, 1.0),
    ],
)
def test_retry_after_follows_how_long_answers_took_within_bounds(
    waiting: int, seats: int, mean_duration_s: float | None, seconds: float
) -> None:
    assert retry_after_s(waiting=waiting, seats=seats, mean_duration_s=mean_duration_s) == seconds
