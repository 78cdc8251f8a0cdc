"""Which numbers of rows are captured, and how far a step is padded."""

import pytest

from pagefleet_engine.runner.cuda.segments import first_counts, row_counts

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("largest", [16, 32, 100, 512, 2048, 8192, 10000])
def test_every_step_fits_and_little_is_padded(largest: int) -> None:
    counts = row_counts(largest)
    assert counts[-1] == largest and counts == tuple(sorted(set(counts)))
    for rows in range(1, largest + 1):
        size = min(count for count in counts if count >= rows)
        assert size - rows < max(128, min(rows // 8 + 1, 512))


@pytest.mark.parametrize("largest", [16, 512, 8192])
def test_the_first_numbers_are_few_and_hold_the_largest_step(largest: int) -> None:
    counts = row_counts(largest)
    first = first_counts(counts)
    assert set(first) <= set(counts) and first[-1] == largest and len(first) <= 10
    for rows in range(min(64, largest), largest + 1):
        assert min(count for count in first if count >= rows) < 2.3 * rows
