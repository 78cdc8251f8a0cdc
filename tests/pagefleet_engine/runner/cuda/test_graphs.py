"""Which batch sizes are captured, and when."""

import pytest

from pagefleet_engine.runner.cuda.graphs import batch_sizes, first_sizes

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("seats", [1, 3, 8, 100, 256, 300, 512])
def test_every_batch_has_a_size_and_little_padding(seats: int) -> None:
    sizes = batch_sizes(seats)
    assert sizes == tuple(sorted(set(sizes))) and sizes[-1] == seats
    for batch in range(1, seats + 1):
        size = min(size for size in sizes if size >= batch)
        assert size - batch < (8 if batch <= 256 else 16)


@pytest.mark.parametrize("seats", [1, 3, 8, 100, 256, 512])
def test_the_first_sizes_pad_no_batch_to_more_than_about_twice(seats: int) -> None:
    sizes = batch_sizes(seats)
    first = first_sizes(sizes)
    assert set(first) <= set(sizes) and first[-1] == seats
    for batch in range(1, seats + 1):
        assert min(size for size in first if size >= batch) <= max(2 * batch + 16, batch)
