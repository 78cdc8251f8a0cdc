"""A matrix product whose sums do not depend on how many rows there are: the batch-invariant mode's linear layer.

cuBLAS picks its tiling, and with it the order of each sum, by the number of rows. Here every output element is
one chain of matrix instructions over the width from its start, 16 columns each, whatever the tile; no split
along the width. The tiles for few and for many rows differ in shape only.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Tile(NamedTuple):
    """Rows, outputs and columns of one step; warps, load stages, and how many row tiles share weights in L2."""

    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int
    group: int = 8


@triton.jit(do_not_specialize=["rows"])
def _gemm_kernel(
    hidden, weight, bias, out, rows, hidden_stride, OUT: tl.constexpr, WIDTH: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_WIDTH: tl.constexpr, GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    out_tiles: tl.constexpr = (OUT + BLOCK_OUT - 1) // BLOCK_OUT
    group_size = GROUP * out_tiles
    first_tile = (program // group_size) * GROUP
    height = tl.minimum(row_tiles - first_tile, GROUP)
    row_tile = first_tile + (program % group_size) % height
    out_tile = (program % group_size) // height

    row = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = out_tile * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    column = tl.arange(0, BLOCK_WIDTH)
    present = (row < rows)[:, None]
    sources = hidden + row.to(tl.int64)[:, None] * hidden_stride + column[None, :]
    weights = weight + (output % OUT).to(tl.int64)[None, :] * WIDTH + column[:, None]
    sums = tl.zeros((BLOCK_ROWS, BLOCK_OUT), tl.float32)
    for start in tl.range(0, WIDTH, BLOCK_WIDTH, num_stages=STAGES):
        if WIDTH % BLOCK_WIDTH == 0:
            left = tl.load(sources + start, mask=present, other=0.0)
            right = tl.load(weights + start)
        else:
            left = tl.load(sources + start, mask=present & (start + column[None, :] < WIDTH), other=0.0)
            right = tl.load(weights + start, mask=start + column[:, None] < WIDTH, other=0.0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    if BIAS:
        sums += tl.load(bias + output, mask=output < OUT, other=0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (output < OUT)[None, :]
    target = out + row.to(tl.int64)[:, None] * OUT + output[None, :]
    tl.store(target, sums.to(out.dtype.element_ty), mask=inside)


def linear(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, tile: Tile | None = None
) -> torch.Tensor:
    """[rows, out] = `hidden` [rows, width] · `weight` [out, width]ᵀ + `bias`; equal rows give equal bits.

    Rows of `hidden` may be strided; `weight` is contiguous.
    """
    (rows, width), outputs = hidden.shape, weight.shape[0]
    out = torch.empty((rows, outputs), dtype=hidden.dtype, device=hidden.device)
    if rows == 0:
        return out
    tile = tile or choose(rows, outputs, hidden.dtype)
    grid = (triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs),)
    _gemm_kernel[grid](
        hidden, weight, hidden if bias is None else bias, out, rows, hidden.stride(0), OUT=outputs, WIDTH=width,
        BIAS=bias is not None, BLOCK_ROWS=tile.rows, BLOCK_OUT=tile.outputs, BLOCK_WIDTH=tile.columns,
        GROUP=tile.group, STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return out


_TILES = [
    Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 4), Tile(64, 128, 64, 4, 4), Tile(64, 64, 128, 4, 4),
    Tile(64, 32, 128, 4, 4), Tile(64, 16, 128, 4, 5),
]  # fmt: skip
_ENOUGH_TILES = 96


def choose(rows: int, outputs: int, dtype: torch.dtype) -> Tile:
    """The largest tile of which there are enough for an H200's multiprocessors; all of one dtype sum alike."""
    if dtype == torch.float32:
        return Tile(64, 64, 32, 4, 2)
    fitting = [tile for tile in _TILES if tile.rows <= max(rows, 64)]
    for tile in fitting:
        if triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs) >= _ENOUGH_TILES:
            return tile
    return fitting[-1]
