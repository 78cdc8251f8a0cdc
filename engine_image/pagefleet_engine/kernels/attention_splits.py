"""Attention over parts of a context, added up: where the parts' results meet, and the sum in the parts' order.

A part's result is its own weighted mean and the binary logarithm of its weights' sum.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.attention_tile import NO_SCORE

ELEMENTS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class SplitScratch:
    """Float32 `partials [rows, heads, head_size]`, `log_sums [rows, heads]`; int32 `counters [sequences x heads]`.

    `rows` is at least query rows x parts. Counters are zero between launches. One stream at a time.
    """

    partials: torch.Tensor
    log_sums: torch.Tensor
    counters: torch.Tensor


def split_scratch(sequences: int, rows: int, heads: int, head_size: int, device: torch.device) -> SplitScratch:
    """Scratch for `rows` partial results, of at most `sequences` decodes."""
    return SplitScratch(
        partials=torch.empty((rows, heads, head_size), dtype=torch.float32, device=device),
        log_sums=torch.empty((rows, heads), dtype=torch.float32, device=device),
        counters=torch.zeros(sequences * heads, dtype=torch.int32, device=device),
    )


def splits_at_once(splits: int, group_rows: int, padded_size: int) -> int:
    """Parts that are read together, as registers allow."""
    return min(splits, max(1, ELEMENTS_AT_ONCE // (group_rows * padded_size)))


@triton.jit
def combine_splits(
    partials: tl.tensor,
    log_sums: tl.tensor,
    out: tl.tensor,
    first_row: tl.tensor,
    active: tl.tensor,
    first_head: tl.tensor,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Add up `active` rows from `first_row` on for GROUP heads from `first_head` on, and write them to `out`.

    GROUP_ROWS, SPLITS (at least `active`) and AT_ONCE are powers of two. A row whose logarithm is -inf counts for
    nothing and is not read.
    """
    dims = tl.arange(0, PADDED_SIZE)
    lanes = tl.arange(0, GROUP_ROWS)
    held = lanes < GROUP
    heads = first_head + lanes
    splits = tl.arange(0, SPLITS)
    sums = tl.load(
        log_sums + (first_row + splits)[:, None] * HEADS + heads[None, :],
        mask=(splits < active)[:, None] & held[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    highest = tl.maximum(tl.max(sums, 0), NO_SCORE)
    total = tl.sum(tl.exp2(sums - highest[None, :]), 0)
    total = tl.where(total > 0.0, total, 1.0)
    mixed = tl.zeros([GROUP_ROWS, PADDED_SIZE], dtype=tl.float32)
    for first in tl.range(0, active, AT_ONCE):
        part = first + tl.arange(0, AT_ONCE)
        rows = (first_row + part).to(tl.int64)
        places = rows[:, None] * HEADS + heads[None, :]
        inside = (part < active)[:, None] & held[None, :]
        log_sum = tl.load(log_sums + places, mask=inside, other=float("-inf"), cache_modifier=".cg")
        shares = tl.exp2(log_sum - highest[None, :]) / total[None, :]
        read = (shares > 0.0)[:, :, None] & (dims < HEAD_SIZE)[None, None, :]
        values = tl.load(
            partials + places[:, :, None] * HEAD_SIZE + dims[None, None, :], mask=read, other=0.0, cache_modifier=".cg"
        )
        mixed += tl.sum(shares[:, :, None] * values, 0)
    places = heads[:, None] * HEAD_SIZE + dims[None, :]
    tl.store(out + places, mixed.to(out.dtype.element_ty), mask=held[:, None] & (dims < HEAD_SIZE)[None, :])
