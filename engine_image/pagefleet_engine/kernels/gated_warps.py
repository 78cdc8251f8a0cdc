"""The gated product of many rows with its warps at different work: one brings tiles, two groups of four multiply.

Each group has 64 rows of a tile to itself and waits for nobody but the bringing warp, so that one multiplies while
the other computes activations. A tile's gates and ups lie beside each other in shared memory, as one operand of 256
columns. In Gluon, Triton's language for what its compiler would decide otherwise; for Hopper.
"""

from typing import NamedTuple

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pagefleet_engine.kernels.activation import Activation, activated

TILE = (128, 128)
"""Rows and columns of a tile of the answer."""
_WIDTH = 64
_STAGES = 4
_GROUP = 16
_MULTIPLYING_REGISTERS: gl.constexpr = gl.constexpr(240)
_BRINGING_REGISTERS: gl.constexpr = gl.constexpr(24)

# by the newer name of each, or by that of Triton 3.6
_bring = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_write = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


class Cut(NamedTuple):
    """What a product's program is compiled for: columns of its answer, width of its rows, whether the activation is
    GELU, tiles in flight, tiles of rows in a group."""

    inner: int
    width: int
    gelu: bool
    stages: int = _STAGES
    group: int = _GROUP


@gluon.jit
def _place(tile, row_tiles, column_tiles: gl.constexpr, GROUP: gl.constexpr):
    """A tile's row and column, in tiles; the tiles of a group of rows follow each other."""
    group_row = tile // (GROUP * column_tiles) * GROUP
    group_rows = gl.minimum(row_tiles - group_row, GROUP)
    place = tile % (GROUP * column_tiles)
    return group_row + place % group_rows, place // group_rows


@gluon.jit
def _bring_tiles(hidden, weight, tiles, weights, free, there, rows, cut: gl.constexpr):
    """The work of the warp that brings: tiles, width by width, as room becomes free."""
    half: gl.constexpr = weight.block_shape[0]
    column_tiles: gl.constexpr = (cut.inner + half - 1) // half
    row_tiles = gl.cdiv(rows, hidden.block_shape[0])
    step = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, cut.group)
        for start in range(0, cut.width, hidden.block_shape[1]):
            stage = step % cut.stages
            mbarrier.wait(free.index(stage), ((step // cut.stages) & 1) ^ 1)
            mbarrier.expect(there.index(stage), hidden.block_type.nbytes + 2 * weight.block_type.nbytes)
            gates = weights.index(stage).slice(0, half, dim=0)
            ups = weights.index(stage).slice(half, half, dim=0)
            _bring(hidden, [row * hidden.block_shape[0], start], there.index(stage), tiles.index(stage))
            _bring(weight, [column * half, start], there.index(stage), gates)
            _bring(weight, [cut.inner + column * half, start], there.index(stage), ups)
            step += 1


@gluon.jit
def _multiply_tiles(out, tiles, weights, result, free, there, rows, PART: gl.constexpr, cut: gl.constexpr):
    """The work of a group of warps that multiplies: its part of each tile's rows."""
    part: gl.constexpr = out.block_shape[0]
    half: gl.constexpr = out.block_shape[1]
    tile_rows: gl.constexpr = tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * half, 16])
    column_tiles: gl.constexpr = (cut.inner + half - 1) // half
    row_tiles = gl.cdiv(rows, tile_rows)
    step = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, cut.group)
        sums = gl.zeros([part, 2 * half], gl.float32, layout)
        for start in range(0, cut.width, tiles.shape[2]):
            stage = step % cut.stages
            mbarrier.wait(there.index(stage), (step // cut.stages) & 1)
            left = tiles.index(stage).slice(PART * part, part, dim=0)
            sums = warpgroup_mma(left, weights.index(stage).permute((1, 0)), sums, is_async=True)
            # the product of the step before has been computed, so that its room is free
            sums = warpgroup_mma_wait(1, deps=[sums])
            if start > 0:
                mbarrier.arrive(free.index((step + cut.stages - 1) % cut.stages))
            step += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index((step + cut.stages - 1) % cut.stages))
        gates, ups = sums.reshape([part, 2, half]).permute((0, 2, 1)).split()
        # rounded where a product and an activation apart would round
        gates = activated(gates.to(out.dtype).to(gl.float32), cut.gelu).to(out.dtype).to(gl.float32)
        tma.store_wait(0)
        result.store((gates * ups.to(out.dtype).to(gl.float32)).to(out.dtype))
        fence_async_shared()
        _write(out, [row * tile_rows + PART * part, column * half], result)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows"])
def _gated_tiles(hidden, weight, out, rows, cut: gl.constexpr):
    part: gl.constexpr = out.block_shape[0]
    half: gl.constexpr = out.block_shape[1]
    groups: gl.constexpr = hidden.block_shape[0] // part
    stages: gl.constexpr = cut.stages
    tiles = gl.allocate_shared_memory(hidden.dtype, [stages, groups * part, hidden.block_shape[1]], hidden.layout)
    weights = gl.allocate_shared_memory(weight.dtype, [stages, 2 * half, hidden.block_shape[1]], weight.layout)
    results = gl.allocate_shared_memory(out.dtype, [groups, part, half], out.layout)
    free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    there = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(free.index(stage), count=groups)
        mbarrier.init(there.index(stage), count=1)
    gl.warp_specialize(
        [
            (_multiply_tiles, (out, tiles, weights, results.index(0), free, there, rows, gl.constexpr(0), cut)),
            (_multiply_tiles, (out, tiles, weights, results.index(1), free, there, rows, gl.constexpr(1), cut)),
            (_bring_tiles, (hidden, weight, tiles, weights, free, there, rows, cut)),
        ],
        [4, 1],
        [_MULTIPLYING_REGISTERS, _BRINGING_REGISTERS],
    )


def gated_product(
    hidden: torch.Tensor, weight: torch.Tensor, kind: Activation, *, programs: int | None = None
) -> torch.Tensor:
    """[rows, inner] = act(gate) · up of `hidden` [rows, width] · `weight` [2 · inner, width]ᵀ, gates first.

    Of at most `programs` programs, by default one for each multiprocessor.
    """
    (rows, width), inner = hidden.shape, len(weight) // 2
    out = torch.empty((rows, inner), dtype=hidden.dtype, device=hidden.device)
    most = programs or torch.cuda.get_device_properties(hidden.device).multi_processor_count
    height, columns = TILE
    tiles = triton.cdiv(rows, height) * triton.cdiv(inner, columns)
    _gated_tiles[(min(tiles, most),)](
        _blocks(hidden, height, _WIDTH), _blocks(weight, columns, _WIDTH), _blocks(out, height // 2, columns),
        rows, Cut(inner, width, kind == "gelu_tanh"), num_warps=4,
    )  # fmt: skip
    return out


def _blocks(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    numbers = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], numbers)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
