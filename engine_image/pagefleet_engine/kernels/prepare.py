"""The first and the last kernel of a step: what the host sent becomes the step's inputs, what was sampled is kept.

The host sends one packed int32 array a step. Per-sequence state lives in rows called seats: the newest token, the
block table, temperature and seed. A step changes them by deltas; nothing else is ever sent twice.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_BLOCK = 256
FROM_SEAT = tl.constexpr(-1)
"""In place of a token: the newest one that the row's seat holds."""


class SeatState(NamedTuple):
    """What a seat holds: int32 [seats + 1], int32 [seats + 1, blocks], float32 and int64 [seats + 1]."""

    newest_token: torch.Tensor
    block_tables: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor


class StepInputs(NamedTuple):
    """Where every step finds its inputs, always at the same addresses; int32.

    [rows] token ids, positions, KV slots and adapters; [decodes] seats and context lengths of the decode rows.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    adapters: torch.Tensor
    seats: torch.Tensor
    context_lengths: torch.Tensor


class PackedCounts(NamedTuple):
    """How much of each part the packed array holds, in its order.

    `rows` tokens, positions, slots and, where `adapted`, adapters (a run each); `decodes` seats; `blocks` pairs of a
    place in the flat block tables and a block; `parameters` groups of seat, temperature's bits, the seed's low and high
    half.
    """

    rows: int
    decodes: int
    blocks: int
    parameters: int
    adapted: bool = False


_VARYING = ["rows", "decodes", "blocks", "parameters", "vocab_size"]


@triton.jit(do_not_specialize=_VARYING)
def _prepare(
    packed, tokens, positions, slots, adapters, seats, context_lengths, newest_token, block_tables, temperature, seeds,
    rows, decodes, blocks, parameters, vocab_size, RUNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_row, is_decode = index < rows, index < decodes
    seat = tl.load(packed + RUNS * rows + index, mask=is_decode, other=0)
    token = tl.load(packed + index, mask=is_row, other=0)
    held = tl.load(newest_token + seat, mask=is_decode & (token == FROM_SEAT), other=0)
    token = tl.where(token == FROM_SEAT, held, token)
    # a sampler that found no number gives the vocabulary's size, which no row of the embedding has
    token = tl.where(token < vocab_size, token, 0)
    position = tl.load(packed + rows + index, mask=is_row, other=0)
    slot = tl.load(packed + 2 * rows + index, mask=is_row, other=0)
    tl.store(tokens + index, token, mask=is_row)
    tl.store(positions + index, position, mask=is_row)
    tl.store(slots + index, slot, mask=is_row)
    if RUNS == 4:
        tl.store(adapters + index, tl.load(packed + 3 * rows + index, mask=is_row, other=0), mask=is_row)
    tl.store(seats + index, seat, mask=is_decode)
    tl.store(context_lengths + index, position + 1, mask=is_decode)
    pair = packed + RUNS * rows + decodes + 2 * index
    place = tl.load(pair, mask=index < blocks, other=0)
    tl.store(block_tables + place, tl.load(pair + 1, mask=index < blocks, other=0), mask=index < blocks)
    group = packed + RUNS * rows + decodes + 2 * blocks + 4 * index
    is_group = index < parameters
    owner = tl.load(group, mask=is_group, other=0)
    heat = tl.load(group + 1, mask=is_group, other=0).to(tl.float32, bitcast=True)
    low = tl.load(group + 2, mask=is_group, other=0).to(tl.int64) & 0xFFFFFFFF
    high = tl.load(group + 3, mask=is_group, other=0).to(tl.int64)
    tl.store(temperature + owner, heat, mask=is_group)
    tl.store(seeds + owner, (high << 32) | low, mask=is_group)


@triton.jit(do_not_specialize=["count"])
def _keep(sampled, seats, newest_token, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = index < count
    seat = tl.load(seats + index, mask=there, other=0)
    tl.store(newest_token + seat, tl.load(sampled + index, mask=there, other=0), mask=there)


def prepare(packed: torch.Tensor, counts: PackedCounts, inputs: StepInputs, state: SeatState, vocab_size: int) -> None:
    """Unpack a step: fill `inputs` and apply the deltas to `state`. `packed` is int32 on the device."""
    longest = max(counts.rows, counts.blocks, counts.parameters)
    runs = 4 if counts.adapted else 3
    _prepare[(triton.cdiv(longest, _BLOCK),)](
        packed, *inputs, *state, counts.rows, counts.decodes, counts.blocks, counts.parameters, vocab_size,
        RUNS=runs, BLOCK=_BLOCK,
    )  # fmt: skip


def keep_sampled(sampled: torch.Tensor, seats: torch.Tensor, state: SeatState) -> None:
    """The newest token of each of `seats` ([n] int32) is the one in `sampled` ([n] int32) from now on."""
    count = sampled.shape[0]
    _keep[(triton.cdiv(count, _BLOCK),)](sampled, seats, state.newest_token, count, BLOCK=_BLOCK)
