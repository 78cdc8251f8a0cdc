"""The gated product of many rows with its warps at different work: one brings tiles, groups of four multiply.

There are two groups or three. Each has 64 rows of a tile to itself and waits for nobody but the bringing warp, so that
one multiplies while another computes activations. A tile's gates and ups lie beside each other in shared memory, as
one operand of 256 columns. In Gluon, for Hopper (see `hopper`).
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

from pagefleet_engine.kernels.activation import Activation
from pagefleet_engine.kernels.hopper import BRINGING_REGISTERS, blocks, bring, gate, multiprocessors, write

_GROUP_ROWS = 64
TILE = (2 * _GROUP_ROWS, 128)
"""Rows and columns of a tile of the answer, by two groups; three have rows for one more."""
_WIDTH = 64
_THREE_GROUPS_TURN = 1.47
"""What a turn of tiles takes by three groups, for 1 by two: as measured on an H200 (see bench/LOG.md)."""


class Cut(NamedTuple):
    """What a product's program is compiled for: columns of its answer, width of its rows, whether the activation is
    GELU; groups that multiply, registers of each of their threads, columns of one matrix instruction, tiles in flight,
    tiles of rows that follow each other."""

    inner: int
    width: int
    gelu: bool
    groups: int = 2
    registers: int = 240
    instruction: int = 256
    stages: int = 4
    follow: int = 16

    def of_three(self) -> "Cut":
        """The same product's by three groups."""
        # 512 threads have 128 registers each at their start, too few for an instruction of 256 columns
        return self._replace(groups=3, registers=160, instruction=128, stages=3, follow=11)


@gluon.jit
def _place(tile, row_tiles, column_tiles: gl.constexpr, FOLLOW: gl.constexpr):
    """A tile's row and column, in tiles; the tiles of `FOLLOW` rows follow each other."""
    first_row = tile // (FOLLOW * column_tiles) * FOLLOW
    rows = gl.minimum(row_tiles - first_row, FOLLOW)
    place = tile % (FOLLOW * column_tiles)
    return first_row + place % rows, place // rows


@gluon.jit
def _bring_tiles(hidden, weight, tiles, weights, free, there, rows, cut: gl.constexpr):
    """The work of the warp that brings: tiles, width by width, as room becomes free."""
    groups: gl.constexpr = cut.groups
    part: gl.constexpr = hidden.block_shape[0]
    half: gl.constexpr = weight.block_shape[0]
    column_tiles: gl.constexpr = (cut.inner + half - 1) // half
    row_tiles = gl.cdiv(rows, groups * part)
    step = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, cut.follow)
        for start in range(0, cut.width, hidden.block_shape[1]):
            stage = step % cut.stages
            mbarrier.wait(free.index(stage), ((step // cut.stages) & 1) ^ 1)
            mbarrier.expect(there.index(stage), groups * hidden.block_type.nbytes + 2 * weight.block_type.nbytes)
            gates = weights.index(stage).slice(0, half, dim=0)
            ups = weights.index(stage).slice(half, half, dim=0)
            for group in gl.static_range(groups):
                place = (row * groups + group) * part
                bring(hidden, [place, start], there.index(stage), tiles.index(stage * groups + group))
            bring(weight, [column * half, start], there.index(stage), gates)
            bring(weight, [cut.inner + column * half, start], there.index(stage), ups)
            step += 1


@gluon.jit
def _multiply_tiles(out, tiles, weights, result, free, there, rows, GROUP: gl.constexpr, cut: gl.constexpr):
    """The work of a group of warps that multiplies: its part of each tile's rows."""
    part: gl.constexpr = out.block_shape[0]
    half: gl.constexpr = out.block_shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, cut.instruction, 16])
    column_tiles: gl.constexpr = (cut.inner + half - 1) // half
    row_tiles = gl.cdiv(rows, cut.groups * part)
    step = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, cut.follow)
        sums = gl.zeros([part, 2 * half], gl.float32, layout)
        for start in range(0, cut.width, tiles.shape[2]):
            stage = step % cut.stages
            mbarrier.wait(there.index(stage), (step // cut.stages) & 1)
            left = tiles.index(stage * cut.groups + GROUP)
            sums = warpgroup_mma(left, weights.index(stage).permute((1, 0)), sums, is_async=True)
            # the product of the step before has been computed, so that its room is free
            sums = warpgroup_mma_wait(1, deps=[sums])
            if start > 0:
                mbarrier.arrive(free.index((step + cut.stages - 1) % cut.stages))
            step += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index((step + cut.stages - 1) % cut.stages))
        gates, ups = sums.reshape([part, 2, half]).permute((0, 2, 1)).split()
        gated = gate(gates, ups, cut.gelu, out.dtype)
        tma.store_wait(0)
        result.store(gated)
        fence_async_shared()
        write(out, [(row * cut.groups + GROUP) * part, column * half], result)
    tma.store_wait(0)


@gluon.jit
def _work(hidden, weight, out, tiles, weights, results, free, there, rows, PLACE: gl.constexpr, cut: gl.constexpr):
    """The work of some of a program's warps: after the groups that multiply comes the warp that brings."""
    if cut.groups > PLACE:
        _multiply_tiles(out, tiles, weights, results.index(PLACE), free, there, rows, PLACE, cut)
    else:
        _bring_tiles(hidden, weight, tiles, weights, free, there, rows, cut)


@gluon.jit(do_not_specialize=["rows"])
def _gated_tiles(hidden, weight, out, rows, cut: gl.constexpr):
    part: gl.constexpr = out.block_shape[0]
    half: gl.constexpr = out.block_shape[1]
    stages: gl.constexpr = cut.stages
    groups: gl.constexpr = cut.groups
    tiles = gl.allocate_shared_memory(hidden.dtype, [stages * groups, part, hidden.block_shape[1]], hidden.layout)
    weights = gl.allocate_shared_memory(weight.dtype, [stages, 2 * half, hidden.block_shape[1]], weight.layout)
    results = gl.allocate_shared_memory(out.dtype, [groups, part, half], out.layout)
    free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    there = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(free.index(stage), count=groups)
        mbarrier.init(there.index(stage), count=1)
    gl.warp_specialize(
        [
            (_work, (hidden, weight, out, tiles, weights, results, free, there, rows, gl.constexpr(place), cut))
            for place in (0, 1, 2, 3)[: groups + 1]
        ],
        [4] * (groups - 1) + [1],
        [cut.registers] * (groups - 1) + [BRINGING_REGISTERS],
    )


def gated_product(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    kind: Activation,
    *,
    programs: int | None = None,
    groups: int | None = None,
) -> torch.Tensor:
    """[rows, inner] = act(gate) · up of `hidden` [rows, width] · `weight` [2 · inner, width]ᵀ, gates first.

    Of at most `programs` programs, by default one for each multiprocessor, with `groups` groups each (`groups_for`).
    """
    (rows, width), inner = hidden.shape, len(weight) // 2
    out = torch.empty((rows, inner), dtype=hidden.dtype, device=hidden.device)
    most = programs or multiprocessors(hidden)
    groups = groups or groups_for(rows, inner, most)
    cut = Cut(inner, width, kind == "gelu_tanh")
    _gated_tiles[(min(_tiles(rows, inner, groups), most),)](
        blocks(hidden, _GROUP_ROWS, _WIDTH), blocks(weight, TILE[1], _WIDTH), blocks(out, _GROUP_ROWS, TILE[1]),
        rows, cut.of_three() if groups == 3 else cut, num_warps=4,
    )  # fmt: skip
    return out


def groups_for(rows: int, inner: int, multiprocessors: int) -> int:
    """The groups, 2 or 3, with which `rows` rows take less time: each multiprocessor computes one tile a turn, and a
    last turn takes as long with few tiles."""
    two, three = (triton.cdiv(_tiles(rows, inner, groups), multiprocessors) for groups in (2, 3))
    return 3 if _THREE_GROUPS_TURN * three < two else 2


def _tiles(rows: int, inner: int, groups: int) -> int:
    return int(triton.cdiv(rows, groups * _GROUP_ROWS) * triton.cdiv(inner, TILE[1]))
