"""Step plans as flat arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.runner.packing import GROUP_COST_TOKENS, MIN_FILL, group_bounds, pack
from pagefleet_engine.steps import Sampling, SequenceStep


@st.composite
def plans(draw: st.DrawFn) -> list[SequenceStep]:
    sizes = draw(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), min_size=1, max_size=12))
    free = iter(draw(st.permutations(range(sum(blocks_for(start + count) for start, count in sizes)))))
    return [
        SequenceStep(
            sequence_id=index,
            token_ids=tuple(1000 * index + position for position in range(start, start + count)),
            start=start,
            block_table=tuple(next(free) for _ in range(blocks_for(start + count))),
            sample=True,
            sampling=Sampling(seed=0),
        )
        for index, (start, count) in enumerate(sizes)
    ]


@given(plans())
def test_every_token_lands_in_its_own_place(plan: list[SequenceStep]) -> None:
    packed = pack(plan)
    rows = 0
    for index, last_row in zip(packed.order, packed.last_rows.tolist(), strict=True):
        step = plan[index]
        own = slice(rows, rows + step.tokens)
        positions = range(step.start, step.start + step.tokens)
        assert packed.token_ids[own].tolist() == list(step.token_ids or ())
        assert packed.positions[own].tolist() == list(positions)
        slots = [step.block_table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS for p in positions]
        assert packed.slots[own].tolist() == slots
        rows = own.stop
        assert last_row == rows - 1
    assert rows == len(packed.token_ids) == len(packed.positions) == len(packed.slots)
    assert sorted(packed.order) == list(range(len(plan)))


@given(plans())
def test_groups_and_chunks_cover_all_rows_and_read_only_their_own_blocks(plan: list[SequenceStep]) -> None:
    packed = pack(plan)
    covered: list[int] = []
    for group in packed.decodes:
        for offset, (blocks, length) in enumerate(zip(group.blocks, group.context_lengths.tolist(), strict=True)):
            step = plan[packed.order[group.first_row + offset]]
            used = blocks_for(length)
            assert length == step.start + 1
            assert tuple(blocks[:used]) == step.block_table
            assert set(blocks[used:]) <= {step.block_table[-1]}
            covered.append(group.first_row + offset)
        assert group.blocks.shape[1] == blocks_for(int(group.context_lengths[0]))
    for chunk in packed.prefills:
        covered += range(chunk.first_row, chunk.first_row + chunk.tokens)
        assert len(chunk.blocks) == blocks_for(chunk.start + chunk.tokens)
    assert covered == list(range(len(packed.token_ids)))


@given(st.lists(st.integers(1, 9000), max_size=300))
def test_decode_groups_hold_sequences_of_like_length(lengths: list[int]) -> None:
    longest_first = np.array(sorted(lengths, reverse=True), np.int64)
    bounds = group_bounds(longest_first)
    assert [index for first, end in bounds for index in range(first, end)] == list(range(len(lengths)))
    for first, end in bounds:
        longest, shortest = int(longest_first[first]), int(longest_first[end - 1])
        few = (longest - shortest) <= 2 * GROUP_COST_TOKENS
        assert shortest >= MIN_FILL * longest or few


def test_a_long_sequence_does_not_make_the_short_ones_pay() -> None:
    assert group_bounds(np.array([8000, *[100] * 30])) == [(0, 1), (1, 31)]
    assert group_bounds(np.array([300, 290, 280])) == [(0, 3)]
    assert group_bounds(np.array([300, 10])) == [(0, 2)]
    assert group_bounds(np.array([], np.int64)) == []
