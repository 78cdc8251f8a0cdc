"""Which blocks a layer with a sliding window reads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.models.attention import windowed_tables

pytestmark = pytest.mark.torch


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 120))
def test_each_sequence_keeps_the_blocks_of_its_newest_positions_and_none_before(
    lengths: list[int], window: int
) -> None:
    lengths.sort(reverse=True)
    width = blocks_for(lengths[0])
    last = [blocks_for(length) - 1 for length in lengths]
    blocks = np.array([[100 * row + min(column, last[row]) for column in range(width)] for row in range(len(lengths))])
    tables, firsts = windowed_tables(blocks, np.array(lengths), window)
    for row, (length, first) in enumerate(zip(lengths, firsts.tolist(), strict=True)):
        oldest = max(length - window, 0)
        assert first == oldest // BLOCK_TOKENS * BLOCK_TOKENS
        held = {first + column * BLOCK_TOKENS: block for column, block in enumerate(tables[row].tolist())}
        for position in range(oldest, length):
            assert held[position // BLOCK_TOKENS * BLOCK_TOKENS] == blocks[row, position // BLOCK_TOKENS]
    assert tables.shape[1] <= blocks_for(window) + 1
