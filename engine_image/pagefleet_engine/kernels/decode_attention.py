"""Decode attention over the paged KV memory: one new token a sequence, its context split among programs.

Source: Dao et al., "Flash-Decoding for long-context inference" (2023). Reading keys and values once is all the
work there is, so a program takes all query heads of one KV head. Each sequence's own length is divided among the
splits in whole tiles: one grid serves any context, as a captured CUDA graph needs, and programs without a share end
at once. Programs start in the order of their sequences, so the time is shortest when the longest contexts come first.
Partial results are added up in the order of the splits, so the same batch gives the same bits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.attention_splits import SplitScratch, combine_splits, split_scratch, splits_at_once
from pagefleet_engine.kernels.attention_tile import (
    NO_SCORE,
    PAGE,
    attend_tile,
    check_heads,
    padded_head_size,
    score_scales,
    tile_blocks,
)
from pagefleet_engine.kernels.launches import Launches, launch
from pagefleet_engine.kernels.overlap import wait_for_inputs

MAX_SPLITS = 64
PROGRAMS_PER_MULTIPROCESSOR = 2
FIT_WITH_FOUR_WARPS, FIT_WITH_TWO_WARPS = 4, 6
"""Programs that a multiprocessor runs at one time, as measured on an H200 (bench/LOG.md)."""


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """How a program works: tokens a tile, warps, tiles in flight; who adds up the splits."""

    tile: int
    warps: int
    stages: int
    fused: bool = True
    """The program that ends last adds up its sequence's splits; else a second kernel does."""


def decode_scratch(sequences: int, rows: int, heads: int, head_size: int, device: torch.device) -> SplitScratch:
    """Scratch for batches up to `sequences` with batch x splits up to `rows`."""
    return split_scratch(sequences, rows, heads, head_size, device)


def choose_splits(batch: int, kv_heads: int, multiprocessors: int) -> int:
    """Splits that fill the GPU with a batch; a power of two."""
    wanted = -(-PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // (batch * kv_heads))
    return min(MAX_SPLITS, 1 << (wanted.bit_length() - 1))


def choose_decode_config(
    head_size: int, element_bytes: int, splits: int, per_multiprocessor: float = 1.0
) -> DecodeConfig:
    """Tile, warps and stages: 16 to 32 KiB of keys and values an iteration, several programs a multiprocessor.

    `per_multiprocessor` is how many programs there are for each: a few more than fit with four warps get two.
    """
    row_bytes = padded_head_size(head_size) * element_bytes
    if splits == 1:
        tile = max(16, min(64, 16384 // row_bytes))
        crowded = FIT_WITH_FOUR_WARPS < per_multiprocessor <= FIT_WITH_TWO_WARPS
        return DecodeConfig(tile=tile, warps=2, stages=3) if crowded else DecodeConfig(tile=tile, warps=4, stages=2)
    return DecodeConfig(tile=max(16, min(32, 8192 // row_bytes)), warps=2, stages=3)


@triton.jit
def _share(length: tl.tensor, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr) -> tl.tensor:
    """First tile, end, and tiles a split of a context of `length` tokens."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // TILE
    end = tl.cdiv(length, TILE)
    return first, end, tl.maximum(tl.cdiv(end - first, SPLITS), 1)


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["block_tables", "seats", "context_lengths"],
)
def decode_kernel(
    queries: tl.tensor,
    kv: tl.tensor,
    block_tables: tl.tensor,
    seats: tl.tensor,
    context_lengths: tl.tensor,
    out: tl.tensor,
    partials: tl.tensor,
    log_sums: tl.tensor,
    counters: tl.tensor,
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    out_stride: tl.tensor,
    score_scale: tl.tensor,
    cap_scale: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    FUSED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """One split of one sequence and KV head; grid [KV_HEADS, SPLITS, batch]."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    sequence = tl.program_id(2)
    wait_for_inputs(PDL)
    length = tl.load(context_lengths + sequence)
    table = block_tables + tl.load(seats + sequence).to(tl.int64) * table_stride
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_SIZE)
    heads = kv_head * GROUP + lanes
    held = lanes < GROUP
    inside = held[:, None] & (dims[None, :] < HEAD_SIZE)
    places = heads[:, None] * HEAD_SIZE + dims[None, :]
    query = tl.load(queries + sequence.to(tl.int64) * query_stride + places, mask=inside, other=0.0)
    first, end, tiles = _share(length, TILE, SPLITS, WINDOW)
    begin = first + split * tiles
    highest = tl.full([ROWS], NO_SCORE, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    weighted = tl.zeros([ROWS, PADDED_SIZE], dtype=tl.float32)
    row_positions = tl.zeros([ROWS], dtype=tl.int32) + (length - 1)
    keys = kv + kv_head * (PAGE * HEAD_SIZE)
    blocks = tile_blocks(table, begin, tl.maximum(length - 1, 0), TILE)
    for tile in tl.range(begin, tl.minimum(begin + tiles, end)):
        blocks, highest, total, weighted = attend_tile(
            query, row_positions, keys, table, tile, blocks, length - 1,
            score_scale, cap_scale, highest, total, weighted,
            KV_HEADS, HEAD_SIZE, PADDED_SIZE, TILE, WINDOW, SOFT_CAP, True,
        )  # fmt: skip
    active = tl.cdiv(end - first, tiles)
    out += sequence.to(tl.int64) * out_stride
    if active <= 1:
        if split == 0:
            mean = weighted / tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(out + places, mean.to(out.dtype.element_ty), mask=inside)
    if SPLITS > 1:
        if (active > 1) & (split < active):
            row = sequence * SPLITS + split
            tl.store(partials + row.to(tl.int64) * (HEADS * HEAD_SIZE) + places, weighted / total[:, None], mask=inside)
            tl.store(log_sums + row * HEADS + heads, highest + tl.log2(total), mask=held)
            if FUSED:
                # All threads' stores come before the count; whoever counts last sees every split's.
                tl.debug_barrier()
                counter = counters + sequence * KV_HEADS + kv_head
                if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == active - 1:
                    tl.store(counter, 0)
                    combine_splits(
                        partials, log_sums, out, sequence * SPLITS, active, kv_head * GROUP,
                        HEADS, GROUP, GROUP_ROWS, HEAD_SIZE, PADDED_SIZE, SPLITS, AT_ONCE,
                    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["context_lengths"])
def combine_kernel(
    context_lengths: tl.tensor,
    out: tl.tensor,
    partials: tl.tensor,
    log_sums: tl.tensor,
    out_stride: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Add up one sequence's splits for one query head; grid [HEADS, batch]."""
    head = tl.program_id(0)
    sequence = tl.program_id(1)
    first, end, tiles = _share(tl.load(context_lengths + sequence), TILE, SPLITS, WINDOW)
    active = tl.cdiv(end - first, tiles)
    if active > 1:
        combine_splits(
            partials, log_sums, out + sequence.to(tl.int64) * out_stride, sequence * SPLITS, active, head,
            HEADS, 1, 1, HEAD_SIZE, PADDED_SIZE, SPLITS, AT_ONCE,
        )  # fmt: skip


def decode_attention(
    queries: torch.Tensor,
    kv: torch.Tensor,
    block_tables: torch.Tensor,
    seats: torch.Tensor,
    context_lengths: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    splits: int,
    scratch: SplitScratch | None,
    window: int | None = None,
    soft_cap: float | None = None,
    config: DecodeConfig | None = None,
    kept: Launches | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """Write each sequence's attention over its own pages to `out [batch, heads, head_size]`, and return it.

    `queries` and `out` may be views of wider rows. `kv [blocks, 2, kv_heads, 16, head_size]` holds the new token
    already, and `context_lengths [batch]` (int32) counts it; a length of 0 gives zeros. `seats [batch]` (int32) names
    rows of `block_tables [seats, max_blocks]` (int32). `window` tokens are seen at most; scores go through
    `soft_cap * tanh(score / soft_cap)`. `scratch` may be None with one split. Launches are put into `kept`. Raises
    ValueError for shapes that do not belong together.
    """
    check_heads(queries, kv, out)
    batch, heads, head_size = queries.shape
    kv_heads = kv.shape[2]
    if splits & (splits - 1) or splits < 1 or (splits > 1 and scratch is None):
        raise ValueError(f"{splits} splits: a power of two, with scratch")
    chosen = config or choose_decode_config(head_size, kv.element_size(), splits)
    partials, log_sums, counters = _places(scratch, batch, splits, kv_heads, out)
    score_scale, cap_scale = score_scales(scale, soft_cap)
    padded = padded_head_size(head_size)
    group_rows = int(triton.next_power_of_2(heads // kv_heads))
    arguments = (
        queries, kv, block_tables, seats, context_lengths, out, partials, log_sums, counters,
        queries.stride(0), block_tables.stride(0), out.stride(0), score_scale, cap_scale,
    )  # fmt: skip
    sizes = {
        "HEADS": heads, "HEAD_SIZE": head_size, "PADDED_SIZE": padded, "TILE": chosen.tile, "SPLITS": splits,
        "WINDOW": window or 0,
    }  # fmt: skip
    named = {
        **sizes, "KV_HEADS": kv_heads, "ROWS": max(16, group_rows), "FUSED": chosen.fused, "GROUP_ROWS": group_rows,
        "AT_ONCE": splits_at_once(splits, group_rows, padded), "SOFT_CAP": soft_cap is not None,
        "PDL": pdl, "launch_pdl": pdl, "num_warps": chosen.warps, "num_stages": chosen.stages,
    }  # fmt: skip
    launch(decode_kernel, (kv_heads, splits, batch), arguments, named, kept)
    if splits > 1 and not chosen.fused:
        named = {**sizes, "AT_ONCE": splits_at_once(splits, 1, padded), "num_warps": 4}
        parts = (context_lengths, out, partials, log_sums, out.stride(0))
        launch(combine_kernel, (heads, batch, 1), parts, named, kept)
    return out


def _places(
    scratch: SplitScratch | None, batch: int, splits: int, kv_heads: int, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The scratch's tensors, large enough; with one split nothing is written and `out` stands for them."""
    if scratch is None or splits == 1:
        return out, out, out
    if scratch.partials.shape[0] < batch * splits or scratch.counters.numel() < batch * kv_heads:
        raise ValueError(f"scratch of {scratch.partials.shape[0]} rows for {batch} sequences x {splits} splits")
    return scratch.partials, scratch.log_sums, scratch.counters
