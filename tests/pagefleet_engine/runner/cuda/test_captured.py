"""Sizes are captured largest first, and a step gets the smallest that holds it."""

import pytest

from pagefleet_engine.runner.cuda.captured import CapturedSizes


def test_sizes_are_captured_largest_first_and_the_smallest_that_fits_is_used() -> None:
    made: list[int] = []
    sizes = CapturedSizes([8, 1, 64, 16], made.append)
    assert sizes.size_for(1) is None and sizes.missing == 4
    sizes.capture([8, 64, 100])
    assert made == [64, 8]
    assert [sizes.size_for(rows) for rows in (1, 8, 9, 64, 65)] == [8, 8, 64, 64, None]
    assert 8 in sizes and 16 not in sizes
    while sizes.capture_next():
        pass
    assert made == [64, 8, 16, 1] and sizes.missing == 0
    assert sizes.size_for(9) == 16


def test_a_size_that_cannot_be_captured_stays_missing_until_it_is_given_up() -> None:
    def fail(size: int) -> None:
        raise RuntimeError(f"no memory for {size}")

    sizes = CapturedSizes([4, 8], fail)
    with pytest.raises(RuntimeError, match="no memory for 8"):
        sizes.capture_next()
    assert sizes.missing == 2 and sizes.size_for(1) is None
    sizes.give_up()
    assert not sizes.capture_next()
