"""From a step plan to flat arrays. Pure; numpy only."""

from collections.abc import Sequence

import numpy as np

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.models.packed import NO_ADAPTER, DecodeGroup, Ints, PackedStep, PrefillChunk
from pagefleet_engine.steps import SequenceStep

MIN_FILL = 0.7
"""A decode group's shortest sequence is at least this share of its longest …"""
GROUP_COST_TOKENS = 384
"""… or costs less padding than this: what one more group costs in dispatches, in tokens attended to."""


def pack(sequences: Sequence[SequenceStep]) -> PackedStep:
    """Flat arrays of a step that names all its tokens: decodes, longest first, then prefill chunks in plan order."""
    decoding = sorted(
        (index for index, sequence in enumerate(sequences) if sequence.tokens == 1),
        key=lambda index: -sequences[index].start,
    )
    prefilling = [index for index, sequence in enumerate(sequences) if sequence.tokens > 1]
    chunks, first_row = [], len(decoding)
    for index in prefilling:
        chunks.append(_chunk(sequences[index], first_row))
        first_row += chunks[-1].tokens
    decodes = [sequences[index] for index in decoding]
    order = (*decoding, *prefilling)
    token_ids = [token for index in order for token in sequences[index].token_ids or ()]
    counts = [sequences[index].tokens for index in order]
    starts = np.array([sequence.start for sequence in decodes], np.int64)
    tails = [sequence.block_table[sequence.start // BLOCK_TOKENS] for sequence in decodes]
    decode_slots = np.array(tails, np.int64) * BLOCK_TOKENS + starts % BLOCK_TOKENS
    positions = [np.arange(chunk.start, chunk.start + chunk.tokens, dtype=np.int64) for chunk in chunks]
    return PackedStep(
        token_ids=np.array(token_ids, np.int64),
        positions=np.concatenate([starts, *positions]),
        slots=np.concatenate([decode_slots, *map(_chunk_slots, chunks, positions)]),
        order=order,
        last_rows=np.cumsum(np.array(counts, np.int64)) - 1,
        decodes=tuple(_group(decodes[first:end], first) for first, end in group_bounds(starts + 1)),
        prefills=tuple(chunks),
        adapters=_adapters([sequences[index] for index in order], counts),
    )


def _adapters(sequences: Sequence[SequenceStep], counts: Sequence[int]) -> Ints | None:
    """Each token's adapter, or None where nobody has one."""
    if all(sequence.adapter is None for sequence in sequences):
        return None
    chosen = [NO_ADAPTER if sequence.adapter is None else sequence.adapter for sequence in sequences]
    return np.repeat(np.array(chosen, np.int64), counts)


def group_bounds(context_lengths: Ints) -> list[tuple[int, int]]:
    """Where to cut decodes, sorted longest first, so that little padding is attended to.

    Half-open index ranges that cover all; empty for no decodes.
    """
    bounds: list[tuple[int, int]] = []
    first, longest = 0, 0
    for index, length in enumerate(context_lengths.tolist()):
        if index == 0:
            longest = length
        elif length < MIN_FILL * longest and (longest - length) * _run(context_lengths, index) > GROUP_COST_TOKENS:
            bounds.append((first, index))
            first, longest = index, length
    if len(context_lengths):
        bounds.append((first, len(context_lengths)))
    return bounds


def _run(context_lengths: Ints, index: int) -> int:
    """How many sequences a group that starts at `index` would hold."""
    shortest = MIN_FILL * context_lengths[index]
    return int(np.count_nonzero(context_lengths[index:] >= shortest))


def _group(decodes: Sequence[SequenceStep], first_row: int) -> DecodeGroup:
    lengths = np.array([sequence.start + 1 for sequence in decodes], np.int64)
    blocks = np.empty((len(decodes), blocks_for(int(lengths[0]))), np.int64)
    for row, sequence in zip(blocks, decodes, strict=True):
        used = blocks_for(sequence.start + 1)
        row[:used] = sequence.block_table[:used]
        row[used:] = row[used - 1]
    return DecodeGroup(first_row, blocks, lengths)


def _chunk(sequence: SequenceStep, first_row: int) -> PrefillChunk:
    tokens = sequence.tokens
    used = blocks_for(sequence.start + tokens)
    return PrefillChunk(first_row, tokens, sequence.start, np.array(sequence.block_table[:used], np.int64))


def _chunk_slots(chunk: PrefillChunk, positions: Ints) -> Ints:
    slots: Ints = chunk.blocks[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return slots
