"""Prefill attention: chunks of prompts of any length over the paged KV memory, causal.

Source: Dao, "FlashAttention-2" (2023). A program takes some tokens of one chunk with all query heads of one KV head
in the rows of its tile, so that keys and values are read once for them. The tiles of keys start at position 0 and
have one size for a head size: a row's result is the same bits wherever its prompt was cut into chunks, and for
a chunk of one token.
"""

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.attention_sections import MAX_SECTIONS, add_sections
from pagefleet_engine.kernels.attention_splits import SplitScratch
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

SEARCHED_AT_ONCE = tl.constexpr(128)


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """How a program works: rows (tokens x query heads of a KV head), keys a tile, warps, tiles in flight."""

    rows: int
    tile: int
    warps: int
    stages: int
    max_registers: int | None = None


def choose_prefill_config(head_size: int, element_bytes: int, rows: int, capability: tuple[int, int]) -> PrefillConfig:
    """The configuration for chunks of at most `rows` (tokens x query heads of a KV head) each.

    The tile depends on the head's size and the device alone, never on `rows`, and so do the warps that share a row.
    """
    padded = padded_head_size(head_size)
    if element_bytes == 4:
        # Exact float32 has no tensor cores: everything lies in registers.
        return PrefillConfig(rows=32, tile=32, warps=4, stages=1)
    if capability[0] >= 9 and capability[0] != 12:
        small = PrefillConfig(rows=64, tile=64, warps=4, stages=3)
        # with so few registers two programs share a multiprocessor, and one computes while the other waits
        large = PrefillConfig(rows=128, tile=64, warps=8, stages=2, max_registers=128)
        if padded <= 64:
            large = replace(large, stages=3, max_registers=None)
        if padded > 128:
            small = large = replace(large, max_registers=None)
    else:
        small = PrefillConfig(rows=64, tile=64 if padded <= 128 else 32, warps=4, stages=2)
        large = replace(small, rows=128, warps=8)
    return small if rows <= small.rows else large


@triton.jit
def _sequence_of(token_offsets: tl.tensor, sequences: tl.tensor, tile: tl.tensor, TOKENS: tl.constexpr) -> tl.tensor:
    """The chunk that tile number `tile` belongs to: chunk i's tiles start at offset_i // TOKENS + i."""
    before = 0
    for first in tl.range(0, sequences, SEARCHED_AT_ONCE):
        index = first + tl.arange(0, SEARCHED_AT_ONCE)
        offsets = tl.load(token_offsets + index, mask=index < sequences, other=0)
        before += tl.sum(((offsets // TOKENS + index <= tile) & (index < sequences)).to(tl.int32), 0)
    return before - 1


@triton.jit(
    do_not_specialize=["sequences", "table_stride"],
    do_not_specialize_on_alignment=["block_tables", "seats", "token_offsets", "starts"],
)
def prefill_kernel(
    queries: tl.tensor,
    kv: tl.tensor,
    block_tables: tl.tensor,
    seats: tl.tensor,
    token_offsets: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    log_sums: tl.tensor,
    sequences: tl.tensor,
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
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
) -> None:
    """A tile of a chunk's tokens, one KV head, one section of the context; grid [KV_HEADS, tiles, sections].

    The longest rows go first. With several sections (SPLIT) `out` is float32 rows token x sections + section.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    TOKENS: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(0)
    tile_number = tl.num_programs(1) - 1 - tl.program_id(1)
    sequence = _sequence_of(token_offsets, sequences, tile_number, TOKENS)
    first_row = tl.load(token_offsets + sequence)
    tokens = tl.load(token_offsets + sequence + 1) - first_row
    first_token = (tile_number - first_row // TOKENS - sequence) * TOKENS
    if first_token >= tokens:
        return
    start = tl.load(starts + sequence)
    table = block_tables + tl.load(seats + sequence).to(tl.int64) * table_stride
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_SIZE)
    last_token = tl.minimum(first_token + TOKENS, tokens) - 1
    token = tl.minimum(first_token + lanes // GROUP, last_token)
    heads = kv_head * GROUP + lanes % GROUP
    held = (first_token + lanes // GROUP <= last_token) & (lanes < TOKENS * GROUP)
    inside = held[:, None] & (dims[None, :] < HEAD_SIZE)
    row = (first_row + token).to(tl.int64)
    places = heads[:, None] * HEAD_SIZE + dims[None, :]
    query = tl.load(queries + row[:, None] * query_stride + places, mask=inside, other=0.0)
    highest = tl.full([ROWS], NO_SCORE, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    weighted = tl.zeros([ROWS, PADDED_SIZE], dtype=tl.float32)
    positions = start + token
    last = start + last_token
    keys = kv + kv_head * (PAGE * HEAD_SIZE)
    full_begin = 0
    full_end = (start + first_token + 1) // TILE
    end = last // TILE + 1
    lo = 0
    if WINDOW > 0:
        full_begin = tl.minimum(tl.cdiv(tl.maximum(last - WINDOW + 1, 0), TILE), end)
        full_end = tl.maximum(full_end, full_begin)
        lo = tl.maximum(start + first_token - WINDOW + 1, 0) // TILE
    hi = end
    if SPLIT:
        share = tl.cdiv(end - lo, tl.num_programs(2))
        lo += tl.program_id(2) * share
        hi = tl.minimum(lo + share, end)
    blocks = tile_blocks(table, lo, last, TILE)
    if WINDOW > 0:
        for tile in tl.range(lo, tl.minimum(full_begin, hi)):
            blocks, highest, total, weighted = attend_tile(
                query, positions, keys, table, tile, blocks, last,
                score_scale, cap_scale, highest, total, weighted,
                KV_HEADS, HEAD_SIZE, PADDED_SIZE, TILE, WINDOW, SOFT_CAP, True,
            )  # fmt: skip
    for tile in tl.range(tl.maximum(full_begin, lo), tl.minimum(full_end, hi)):
        blocks, highest, total, weighted = attend_tile(
            query, positions, keys, table, tile, blocks, last,
            score_scale, cap_scale, highest, total, weighted,
            KV_HEADS, HEAD_SIZE, PADDED_SIZE, TILE, WINDOW, SOFT_CAP, False,
        )  # fmt: skip
    for tile in tl.range(tl.maximum(full_end, lo), hi):
        blocks, highest, total, weighted = attend_tile(
            query, positions, keys, table, tile, blocks, last,
            score_scale, cap_scale, highest, total, weighted,
            KV_HEADS, HEAD_SIZE, PADDED_SIZE, TILE, WINDOW, SOFT_CAP, True,
        )  # fmt: skip
    if SPLIT:
        # A row may see nothing of a section: within a window, or after its own position.
        log_sum = tl.where(total > 0.0, highest + tl.log2(total), float("-inf"))
        total = tl.where(total > 0.0, total, 1.0)
        row = row * tl.num_programs(2) + tl.program_id(2)
        tl.store(log_sums + row * HEADS + heads, log_sum, mask=held)
    mean = weighted / total[:, None]
    tl.store(out + row[:, None] * out_stride + places, mean.to(out.dtype.element_ty), mask=inside)


def prefill_attention(
    queries: torch.Tensor,
    kv: torch.Tensor,
    block_tables: torch.Tensor,
    seats: torch.Tensor,
    token_offsets: torch.Tensor,
    starts: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    max_tokens: int,
    window: int | None = None,
    soft_cap: float | None = None,
    sections: int = 1,
    scratch: SplitScratch | None = None,
    config: PrefillConfig | None = None,
    kept: Launches | None = None,
) -> torch.Tensor:
    """Write each chunk's causal attention over its own pages to `out [tokens, heads, head_size]`, and return it.

    Chunk i is the rows `token_offsets[i]` .. `token_offsets[i + 1]` (int32 `[n + 1]`) of `queries`, at positions
    from `starts[i]` (int32) on; `max_tokens` is at least the longest chunk's. `kv [blocks, 2, kv_heads, 16,
    head_size]` holds the chunk's keys and values already; `seats [n]` (int32) names rows of `block_tables` (int32).
    `queries` and `out` may be views of wider rows; rows outside the chunks stay as they are (with one section; with
    more they are undefined). `window` and `soft_cap` as in `decode_attention`. With `sections` > 1 (a power of two
    up to 16, and `scratch` for tokens x sections rows) each row's context is computed in so many parts: for short
    chunks after a long context, and not the same bits as in one. Launches are put into `kept`. Raises ValueError for
    shapes that do not belong together.
    """
    check_heads(queries, kv, out)
    tokens, heads, head_size = queries.shape
    kv_heads, sequences = kv.shape[2], seats.shape[0]
    group = heads // kv_heads
    chosen = config or choose_prefill_config(
        head_size, kv.element_size(), max_tokens * group, device_capability(kv.device)
    )
    if group > chosen.rows:
        raise ValueError(f"{group} query heads for a KV head: at most {chosen.rows}")
    partials, log_sums = _places(scratch, tokens, sections, out)
    score_scale, cap_scale = score_scales(scale, soft_cap)
    limits = {} if chosen.max_registers is None else {"maxnreg": chosen.max_registers}
    arguments = (
        queries, kv, block_tables, seats, token_offsets, starts, partials, log_sums, sequences,
        queries.stride(0), block_tables.stride(0), partials.stride(0), score_scale, cap_scale,
    )  # fmt: skip
    named = {
        "HEADS": heads, "KV_HEADS": kv_heads, "HEAD_SIZE": head_size, "PADDED_SIZE": padded_head_size(head_size),
        "ROWS": chosen.rows, "TILE": chosen.tile, "SPLIT": sections > 1, "WINDOW": window or 0,
        "SOFT_CAP": soft_cap is not None, "num_warps": chosen.warps, "num_stages": chosen.stages, **limits,
    }  # fmt: skip
    tiles = tokens // (chosen.rows // group) + sequences
    launch(prefill_kernel, (kv_heads, tiles, sections), arguments, named, kept)
    if scratch is not None and sections > 1:
        add_sections(scratch, out, sections, kept)
    return out


def _places(
    scratch: SplitScratch | None, tokens: int, sections: int, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where sections are written, large enough; with one section `out` itself."""
    if sections & (sections - 1) or not 1 <= sections <= MAX_SECTIONS or (sections > 1 and scratch is None):
        raise ValueError(f"{sections} sections: a power of two up to {MAX_SECTIONS}, with scratch")
    if scratch is None or sections == 1:
        return out, out
    if scratch.partials.shape[0] < tokens * sections:
        raise ValueError(f"scratch of {scratch.partials.shape[0]} rows for {tokens} tokens x {sections} sections")
    return scratch.partials, scratch.log_sums


def device_capability(device: torch.device) -> tuple[int, int]:
    """CUDA's compute capability; the interpreter on a CPU counts as the smallest."""
    return (8, 0) if device.type == "cpu" else torch.cuda.get_device_capability(device)
