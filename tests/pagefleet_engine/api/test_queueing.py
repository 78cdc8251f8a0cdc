"""Who may wait."""

import pytest

from pagefleet_engine.api.queueing import capacity, fitting_prompts


@pytest.mark.parametrize(
    ("running", "waiting", "fitting", "room"),
    [
        (0, 0, None, 12), (3, 0, None, 12), (8, 0, None, 12), (8, 1, None, 12), (2, 1, None, 6), (0, 1, None, 4),
        (0, 0, 2, 6), (1, 0, 2, 6), (5, 0, 2, 9), (0, 0, 99, 12), (3, 1, 99, 7), (2, 0, 0, 6),
    ],
)  # fmt: skip
def test_the_queue_is_bounded_beyond_the_seats_that_are_taken_or_that_memory_has_room_for(
    running: int, waiting: int, fitting: int | None, room: int
) -> None:
    assert capacity(max_num_seqs=8, max_queued=4, running=running, waiting=waiting, fitting=fitting) == room


@pytest.mark.parametrize(
    ("sequences", "blocks", "fitting"), [(0, 0, None), (1, 16, 2), (3, 48, 2), (2, 17, 3), (4, 4, 32)]
)
def test_memory_has_room_for_as_many_prompts_as_those_that_are_open_are_long(
    sequences: int, blocks: int, fitting: int | None
) -> None:
    assert fitting_prompts(32, sequences, blocks) == fitting
