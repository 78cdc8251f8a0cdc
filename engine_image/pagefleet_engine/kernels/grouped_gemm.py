"""Expert layers of a mixture of experts: rows sorted by expert, one product with a different weight for each.

The grid is for the worst case, so that a CUDA graph serves any routing: each expert's rows are cut into tiles,
tiles are numbered along the experts, and a program finds its expert from the running count of tiles.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Tile(NamedTuple):
    """Rows, outputs and columns of one step; warps and load stages."""

    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int


class Routing(NamedTuple):
    """Which rows each expert computes; a row is one choice of one token, number token · per_token + choice.

    `order` [rows] int64: the row at each sorted place; `places` [rows] int64: each row's sorted place;
    `ends` [experts] int32: where each expert's sorted rows end.
    """

    order: torch.Tensor
    places: torch.Tensor
    ends: torch.Tensor
    per_token: int


@triton.jit
def _experts_kernel(
    hidden, weights, order, ends, out, hidden_stride, EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr,
    OUT: tl.constexpr, WIDTH: tl.constexpr, PER_TOKEN: tl.constexpr, GATHER: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(1)
    experts = tl.arange(0, EXPERTS_BLOCK)
    end = tl.load(ends + experts, mask=experts < EXPERTS, other=0)
    begin = tl.load(ends + experts - 1, mask=(experts > 0) & (experts < EXPERTS), other=0)
    tiles = tl.where(experts < EXPERTS, (end - begin + BLOCK_ROWS - 1) // BLOCK_ROWS, 0)
    last_tiles = tl.cumsum(tiles, 0)
    if tile < tl.sum(tiles, 0):
        expert = tl.sum((last_tiles <= tile).to(tl.int32), 0)
        mine = experts == expert
        first = tl.sum(tl.where(mine, begin, 0), 0)
        last = tl.sum(tl.where(mine, end, 0), 0)
        before = tl.sum(tl.where(mine, last_tiles - tiles, 0), 0)
        place = first + (tile - before) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        row = place.to(tl.int64)
        if GATHER:
            row = tl.load(order + place, mask=place < last, other=0) // PER_TOKEN
        output = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
        column = tl.arange(0, BLOCK_WIDTH)
        sources = hidden + row[:, None] * hidden_stride + column[None, :]
        matrix = weights + expert.to(tl.int64) * (OUT * WIDTH)
        columns = matrix + (output % OUT)[None, :] * WIDTH + column[:, None]
        sums = tl.zeros((BLOCK_ROWS, BLOCK_OUT), tl.float32)
        for start in tl.range(0, WIDTH, BLOCK_WIDTH, num_stages=STAGES):
            inside = start + column < WIDTH
            left = tl.load(sources + start, mask=(place < last)[:, None] & inside[None, :], other=0.0)
            right = tl.load(columns + start, mask=inside[:, None], other=0.0)
            sums = tl.dot(left, right, sums, input_precision="ieee")
        target = out + place.to(tl.int64)[:, None] * OUT + output[None, :]
        stored = (place < last)[:, None] & (output < OUT)[None, :]
        tl.store(target, sums.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _combine_kernel(
    sorted_rows, places, shares, out, out_stride, delta_scale, WIDTH: tl.constexpr, PER_TOKEN: tl.constexpr,
    ADD: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    dtype = out.dtype.element_ty
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(PER_TOKEN):
        place = tl.load(places + token * PER_TOKEN + choice)
        share = tl.load(shares + token * PER_TOKEN + choice).to(tl.float32)
        total += share * tl.load(sorted_rows + place * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    target = out + token * out_stride + columns
    total = total.to(dtype).to(tl.float32)
    if SCALE:
        total = (total * delta_scale).to(dtype).to(tl.float32)
    if ADD:
        total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(dtype), mask=inside)


def sort_by_expert(expert_ids: torch.Tensor, experts: int) -> Routing:
    """The routing of `expert_ids` [tokens, per_token]; equal experts keep the rows' order, nothing waits."""
    flat = expert_ids.reshape(-1)
    by_expert, order = flat.sort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    each = torch.arange(experts, device=flat.device, dtype=flat.dtype)
    ends = torch.searchsorted(by_expert, each, right=True, out_int32=True)
    return Routing(order, places, ends, expert_ids.shape[1])


def experts_linear(
    hidden: torch.Tensor, weights: torch.Tensor, routing: Routing, *, gather: bool, tile: Tile | None = None
) -> torch.Tensor:
    """[rows, out] in sorted order: each row through its expert's matrix of `weights` [experts, out, width].

    With `gather` `hidden` is [tokens, width] and each row reads its token's; without it `hidden` is [rows,
    width], sorted already (the layer before's result).
    """
    rows, (experts, outputs, width) = len(routing.order), weights.shape
    out = torch.empty((rows, outputs), dtype=hidden.dtype, device=hidden.device)
    if rows == 0:
        return out
    tile = tile or choose(rows, experts, hidden.dtype)
    worst_tiles = min(rows // tile.rows + experts, rows)
    _experts_kernel[(triton.cdiv(outputs, tile.outputs), worst_tiles)](
        hidden, weights, routing.order, routing.ends, out, hidden.stride(0), EXPERTS=experts,
        EXPERTS_BLOCK=triton.next_power_of_2(experts), OUT=outputs, WIDTH=width, PER_TOKEN=routing.per_token,
        GATHER=gather, BLOCK_ROWS=tile.rows, BLOCK_OUT=tile.outputs, BLOCK_WIDTH=tile.columns, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip
    return out


def combine(
    sorted_rows: torch.Tensor,
    shares: torch.Tensor,
    routing: Routing,
    *,
    residual: torch.Tensor | None = None,
    delta_scale: float = 1.0,
) -> torch.Tensor:
    """[tokens, width]: the sum of each token's rows times their `shares` [tokens, per_token], in choice order.

    With a `residual` [tokens, width] the rounded sum times `delta_scale` is added to it in place, and it is
    the result.
    """
    tokens, width = shares.shape[0], sorted_rows.shape[1]
    out = residual
    if out is None:
        out = torch.empty((tokens, width), dtype=sorted_rows.dtype, device=sorted_rows.device)
    block = min(triton.next_power_of_2(width), 1024)
    if tokens:
        _combine_kernel[(tokens, triton.cdiv(width, block))](
            sorted_rows, routing.places, shares, out, out.stride(0), delta_scale, WIDTH=width,
            PER_TOKEN=routing.per_token, ADD=residual is not None, SCALE=delta_scale != 1.0, BLOCK=block,
            num_warps=4,
        )  # fmt: skip
    return out


def choose(rows: int, experts: int, dtype: torch.dtype, *, batch_invariant: bool = False) -> Tile:
    """A tile by the rows that an expert has on average.

    With `batch_invariant` all of one dtype sum alike, as those of `invariant_gemm`: a tile of fewer than 64 rows has
    other matrix instructions on Hopper.
    """
    if dtype == torch.float32:
        return Tile(16, 64, 32, 4, 2)
    each = rows // experts
    if each <= 8 and not batch_invariant:
        return Tile(16, 64, 128, 4, 4)
    if each <= 64:
        return Tile(64, 128, 64, 4, 4)
    return Tile(128, 256, 64, 8, 3)
