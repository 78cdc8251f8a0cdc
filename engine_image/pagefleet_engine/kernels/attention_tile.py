"""What decode and prefill attention share: one tile of keys and values folded into the running softmax.

Source: Dao, "FlashAttention-2" (2023), section 3; Kwon et al., "Efficient Memory Management for LLM Serving with
PagedAttention" (2023). A row's sums go through the tiles from the first to the last and depend on nothing but the
tile's size: a tile that is masked for a row as a whole changes no bit of it, and the masked and the unmasked path
compute the same expressions (fused multiply-adds are written out, so that a compiler has no choice).
"""

import math

import torch
import triton
import triton.language as tl

from pagefleet_api.sizing import BLOCK_TOKENS

LOG2_E = math.log2(math.e)

PAGE = tl.constexpr(BLOCK_TOKENS)
NO_SCORE = tl.constexpr(-1.0e30)
"""Where a row's maximum starts: below any score, and finite, so that a difference of two is never NaN."""


@triton.jit
def tile_blocks(table: tl.tensor, tile: tl.tensor, last_position: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """The block of each position of a tile, `[TILE]`; `last_position`'s for those after it."""
    return tl.load(table + tl.minimum(tile * TILE + tl.arange(0, TILE), last_position) // PAGE)


@triton.jit
def scaled_scores(scores: tl.tensor, cap_scale: tl.tensor, SOFT_CAP: tl.constexpr) -> tl.tensor:
    """`scores`, or tanh of them: tanh x = 1 - 2 / (1 + e^2x), which saturates without overflow."""
    if SOFT_CAP:
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * cap_scale))
    return scores


@triton.jit
def attend_tile(
    query: tl.tensor,
    row_positions: tl.tensor,
    keys: tl.tensor,
    table: tl.tensor,
    tile: tl.tensor,
    blocks: tl.tensor,
    last_position: tl.tensor,
    score_scale: tl.tensor,
    cap_scale: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    weighted: tl.tensor,
    KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Fold positions `tile * TILE` … of the sequence into `highest [M]`, `total [M]`, `weighted [M, D]`.

    `query [M, D]`; `keys` points to the key head in block 0; `blocks [TILE]` are this tile's and the answer's
    first part the next one's: read a tile ahead, their latency stays out of the loads of keys and values. With
    MASKED a row at `row_positions [M]` sees only itself and what is before it (within WINDOW).
    """
    dims = tl.arange(0, PADDED_SIZE)
    positions = tile * TILE + tl.arange(0, TILE)
    # Tiles begin at a block's begin, and every block holds 16 tokens' memory: no offset leaves it.
    rows = blocks.to(tl.int64) * (KV_HEADS * 2 * PAGE * HEAD_SIZE) + (tl.arange(0, TILE) % PAGE) * HEAD_SIZE
    places = keys + rows[:, None] + dims[None, :]
    # What lies after the last position may be another sequence's leftovers, not a number even: never multiplied.
    read = (positions <= last_position)[:, None] & (dims < HEAD_SIZE)[None, :]
    if MASKED:
        key = tl.load(places, mask=read, other=0.0)
        value = tl.load(places + KV_HEADS * PAGE * HEAD_SIZE, mask=read, other=0.0)
    elif HEAD_SIZE == PADDED_SIZE:
        key = tl.load(places)
        value = tl.load(places + KV_HEADS * PAGE * HEAD_SIZE)
    else:
        key = tl.load(places, mask=(dims < HEAD_SIZE)[None, :], other=0.0)
        value = tl.load(places + KV_HEADS * PAGE * HEAD_SIZE, mask=(dims < HEAD_SIZE)[None, :], other=0.0)
    blocks = tile_blocks(table, tile + 1, last_position, TILE)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee")
    scores = scaled_scores(scores, cap_scale, SOFT_CAP)
    if MASKED:
        seen = positions[None, :] <= row_positions[:, None]
        if WINDOW > 0:
            seen = seen & (positions[None, :] > row_positions[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    risen = tl.maximum(highest, tl.max(scores, 1) * score_scale)
    shares = tl.exp2(tl.fma(scores, score_scale, -risen[:, None]))
    kept = tl.exp2(highest - risen)
    total = tl.fma(total, kept, tl.sum(shares, 1))
    weighted = tl.dot(shares.to(value.dtype), value, weighted * kept[:, None], input_precision="ieee")
    return blocks, risen, total, weighted


def score_scales(scale: float, soft_cap: float | None) -> tuple[float, float]:
    """`score_scale`, `cap_scale` of the kernels: exponents are base 2, and tanh is taken by e^2x.

    Without a cap exp(scale * s) = 2^(score_scale * s); with it exp(cap * tanh(scale * s / cap)).
    """
    if soft_cap is None:
        return scale * LOG2_E, 0.0
    return soft_cap * LOG2_E, 2.0 * LOG2_E * scale / soft_cap


def padded_head_size(head_size: int) -> int:
    """Lanes that a head takes in a tile: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(head_size)))


def check_heads(queries: torch.Tensor, kv: torch.Tensor, out: torch.Tensor) -> None:
    """Raise ValueError for tensors that the kernels would read or write wrongly."""
    tokens, heads, head_size = queries.shape
    if kv.shape[1] != 2 or kv.shape[3] != BLOCK_TOKENS or kv.shape[4] != head_size or not kv.is_contiguous():
        raise ValueError(f"KV memory of shape {tuple(kv.shape)} for heads of {head_size}")
    if heads % kv.shape[2]:
        raise ValueError(f"{heads} query heads do not divide among {kv.shape[2]} KV heads")
    for name, tensor in (("queries", queries), ("out", out)):
        if tensor.shape != (tokens, heads, head_size) or tensor.stride()[1:] != (head_size, 1):
            raise ValueError(
                f"{name} of shape {tuple(tensor.shape)}, strides {tensor.stride()}: heads must lie together"
            )
