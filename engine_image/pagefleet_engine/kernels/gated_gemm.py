"""The product with gates and ups, and the gated activation inside it, by Hopper's tensor memory accelerator.

A tile holds the same columns of gates and ups, so that only their product is written: the activation would read and
write twice as much again. The tiles of a group of rows follow each other, so that programs that run at one time read
the same weights.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from pagefleet_engine.kernels import gated_warps
from pagefleet_engine.kernels.activation import Activation, activated

FEW_ROWS = 128
"""More are `gated_warps`'."""
_ALIGNED_BYTES = 16


class GatedConfig(NamedTuple):
    """How the product is cut: a tile of rows and of columns (as many of the gates as of the ups), width a step, steps
    in flight, warps, tiles of rows in a group. `swapped` makes columns the longer side of the matrix units' tile."""

    rows: int
    columns: int
    width: int
    stages: int
    warps: int
    group: int
    swapped: bool = False


@triton.jit(do_not_specialize=["rows"])
def _gated_product(
    hidden, weight, out, rows,
    INNER: tl.constexpr, WIDTH: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
    TILE_WIDTH: tl.constexpr, GROUP: tl.constexpr, GELU: tl.constexpr, SWAPPED: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(rows, TILE_ROWS)
    column_tiles: tl.constexpr = (INNER + TILE_COLUMNS - 1) // TILE_COLUMNS
    dtype = out.dtype
    tile = tl.program_id(0)
    group_row = tile // (GROUP * column_tiles) * GROUP
    group_rows = tl.minimum(row_tiles - group_row, GROUP)
    place = tile % (GROUP * column_tiles)
    row = (group_row + place % group_rows) * TILE_ROWS
    column = place // group_rows * TILE_COLUMNS
    gates = tl.zeros((TILE_COLUMNS, TILE_ROWS) if SWAPPED else (TILE_ROWS, TILE_COLUMNS), tl.float32)
    ups = tl.zeros(gates.shape, tl.float32)
    for start in range(0, WIDTH, TILE_WIDTH):
        values = hidden.load([row, start])
        gate_weights = weight.load([column, start])
        up_weights = weight.load([INNER + column, start])
        if SWAPPED:
            gates = tl.dot(gate_weights, values.T, gates)
            ups = tl.dot(up_weights, values.T, ups)
        else:
            gates = tl.dot(values, gate_weights.T, gates)
            ups = tl.dot(values, up_weights.T, ups)
    if SWAPPED:
        gates, ups = gates.T, ups.T
    # rounded where a product and an activation apart would round
    gates = activated(gates.to(dtype).to(tl.float32), GELU).to(dtype).to(tl.float32)
    out.store([row, column], (gates * ups.to(dtype).to(tl.float32)).to(dtype))


def pays(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this kernel can compute the product, and beats a product and an activation apart: on Hopper, with 16-bit
    numbers in rows that lie on 16 bytes, those of the product too."""
    half = weight.dtype in {torch.bfloat16, torch.float16} and hidden.dtype == weight.dtype
    aligned = all(
        tensor.stride(-1) == 1 and tensor.stride(0) * tensor.element_size() % _ALIGNED_BYTES == 0
        and tensor.data_ptr() % _ALIGNED_BYTES == 0
        for tensor in (hidden, weight)
    )  # fmt: skip
    aligned &= len(weight) // 2 * weight.element_size() % _ALIGNED_BYTES == 0
    if not (half and aligned) or weight.is_cpu or torch.cuda.get_device_capability(weight.device)[0] != 9:
        return False
    multiprocessors = torch.cuda.get_device_properties(weight.device).multi_processor_count
    return faster(len(hidden), len(weight) // 2, multiprocessors)


def faster(rows: int, inner: int, multiprocessors: int) -> bool:
    """Whether `rows` rows are of those that gain, as measured on an H200 (see bench/LOG.md), and its tiles fill most of
    the GPU."""
    gains = rows <= FEW_ROWS or 240 < rows <= 256 or rows >= 384
    height, columns = (choose(rows).rows, choose(rows).columns) if rows <= FEW_ROWS else gated_warps.TILE
    tiles = triton.cdiv(rows, height) * triton.cdiv(inner, columns)
    return gains and 4 * tiles >= 3 * multiprocessors


def choose(rows: int) -> GatedConfig:
    """A good cut for `rows` rows, up to `FEW_ROWS` (likewise)."""
    if rows <= 16:
        return GatedConfig(rows=16, columns=64, width=128, stages=3, warps=4, group=1, swapped=True)
    if rows <= 32:
        return GatedConfig(rows=32, columns=64, width=64, stages=5, warps=4, group=1, swapped=True)
    if rows <= 64:
        return GatedConfig(rows=64, columns=64, width=128, stages=4, warps=4, group=1)
    return GatedConfig(rows=128, columns=128, width=64, stages=4, warps=8, group=16)


def gated_product(
    hidden: torch.Tensor, weight: torch.Tensor, kind: Activation, *, config: GatedConfig | None = None
) -> torch.Tensor:
    """[rows, inner] = act(gate) · up of `hidden` [rows, width] · `weight` [2 · inner, width]ᵀ, gates first."""
    (rows, width), inner = hidden.shape, len(weight) // 2
    if config is None and rows > FEW_ROWS:
        return gated_warps.gated_product(hidden, weight, kind)
    out = torch.empty((rows, inner), dtype=hidden.dtype, device=hidden.device)
    cut = config or choose(rows)
    tiles = triton.cdiv(rows, cut.rows) * triton.cdiv(inner, cut.columns)
    _gated_product[(tiles,)](
        _tiles(hidden, cut.rows, cut.width), _tiles(weight, cut.columns, cut.width), _tiles(out, cut.rows, cut.columns),
        rows, INNER=inner, WIDTH=width, TILE_ROWS=cut.rows, TILE_COLUMNS=cut.columns, TILE_WIDTH=cut.width,
        GROUP=cut.group, GELU=kind == "gelu_tanh", SWAPPED=cut.swapped, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


def _tiles(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])
