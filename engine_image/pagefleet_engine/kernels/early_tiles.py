"""The kernel of `early_gemm`: one warp brings tiles of weights and rows, groups of four multiply them.

A program has some columns and a part of the width. Columns are the longer side of the matrix units' tile, so that few
rows are not padded to 64. In Gluon (see `hopper`).
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pagefleet_engine.kernels.hopper import BRINGING_REGISTERS, bring, gate, write

# by the newer name of each, or by that of Triton 3.6
_meet = getattr(gl, "thread_barrier", None) or gl.barrier
_NEWER: gl.constexpr = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))


class Cut(NamedTuple):
    """What a product is compiled for: tiles in flight, groups of four warps that multiply, whether it is gated and by
    GELU, rows of the second operand, registers of a thread of the second group."""

    stages: int
    groups: int
    gated: bool
    gelu: bool
    more_rows: int
    registers: int


@gluon.jit
def _share(width, step: gl.constexpr):
    """This program's first column of the width, and how many steps it takes from there."""
    steps = gl.cdiv(width, step)
    part = gl.program_id(1)
    first = part * steps // gl.num_programs(1)
    return first * step, (part + 1) * steps // gl.num_programs(1) - first


@gluon.jit
def _bring_weights(weight, weights, there, stage, start, outputs, cut: gl.constexpr):
    """Each group's columns; where it is gated, of the gates and as many of the ups."""
    box: gl.constexpr = weight.block_shape[0]
    groups: gl.constexpr = cut.groups
    for group in gl.static_range(groups):
        column = (gl.program_id(0) * groups + group) * box
        if cut.gated:
            gates = weights.index(stage).slice(2 * group * box, box, dim=0)
            ups = weights.index(stage).slice((2 * group + 1) * box, box, dim=0)
            bring(weight, [column, start], there.index(stage), gates)
            bring(weight, [outputs + column, start], there.index(stage), ups)
        else:
            own = weights.index(stage).slice(group * box, box, dim=0)
            bring(weight, [column, start], there.index(stage), own)


@gluon.jit
def _bring_rows(hidden, more_hidden, rows, more_rows, there, stage, start, cut: gl.constexpr):
    bring(hidden, [0, start], there.index(stage), rows.index(stage))
    if cut.more_rows > 0:
        bring(more_hidden, [hidden.block_shape[0], start], there.index(stage), more_rows.index(stage))


@gluon.jit
def _bring_tiles(
    hidden, more_hidden, weight, rows, more_rows, weights, free, there, outputs, width, cut: gl.constexpr
):  # fmt: skip
    """The work of the warp that brings: weights as far ahead as there is room, then the rows once they are there."""
    step: gl.constexpr = hidden.block_shape[1]
    of_rows: gl.constexpr = hidden.block_type.nbytes + (more_hidden.block_type.nbytes if cut.more_rows > 0 else 0)
    nbytes: gl.constexpr = of_rows + weight.block_type.nbytes * cut.groups * (2 if cut.gated else 1)
    stages: gl.constexpr = cut.stages
    start, steps = _share(width, step)
    gdc_launch_dependents()
    for ahead in gl.static_range(stages):
        if ahead < steps:
            mbarrier.expect(there.index(ahead), nbytes)
            _bring_weights(weight, weights, there, ahead, start + ahead * step, outputs, cut)
    gdc_wait()
    for ahead in gl.static_range(stages):
        if ahead < steps:
            _bring_rows(hidden, more_hidden, rows, more_rows, there, ahead, start + ahead * step, cut)
    for index in range(stages, steps):
        stage = index % stages
        mbarrier.wait(free.index(stage), ((index // stages) & 1) ^ 1)
        mbarrier.expect(there.index(stage), nbytes)
        _bring_weights(weight, weights, there, stage, start + index * step, outputs, cut)
        _bring_rows(hidden, more_hidden, rows, more_rows, there, stage, start + index * step, cut)


@gluon.jit
def _gate(sums, room, written, column, first: gl.constexpr, gelu: gl.constexpr):
    """Write act(gate) · up of [gates and ups, rows] to rows from `first` on, through `room`."""
    half: gl.constexpr = sums.shape[0] // 2
    rows: gl.constexpr = sums.shape[1]
    dtype: gl.constexpr = written.dtype
    if _NEWER:
        result = room.reinterpret(dtype, [rows, half], written.layout)
    else:
        result = room._reinterpret(dtype, [rows, half], written.layout)
    gates, ups = sums.reshape([2, half, rows]).permute((1, 2, 0)).split()
    result.permute((1, 0)).store(gate(gates, ups, gelu, dtype))
    fence_async_shared()
    _meet()
    write(written, [first, column], result)


@gluon.jit
def _keep_part(sums, parts, column, first: gl.constexpr, count, outputs):
    """Write this part's sums [columns, rows] of rows from `first` on."""
    columns: gl.constexpr = sums.shape[0]
    rows: gl.constexpr = sums.shape[1]
    places = column + gl.arange(0, columns, gl.SliceLayout(1, sums.type.layout))[:, None]
    row = first + gl.arange(0, rows, gl.SliceLayout(0, sums.type.layout))[None, :]
    target = parts + (gl.program_id(1) * count + row) * outputs + places
    gl.store(target, sums, mask=(row < count) & (places < outputs))


@gluon.jit
def _multiply_tiles(
    written, more_written, parts, rows, more_rows, weights, free, there, count, outputs, width,
    GROUP: gl.constexpr, cut: gl.constexpr,
):  # fmt: skip
    """The work of a group of warps that multiplies: [its columns, rows] of this part of the width."""
    columns: gl.constexpr = weights.shape[1] // cut.groups
    first_rows: gl.constexpr = rows.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, first_rows, 16])
    _start, steps = _share(width, rows.shape[2])
    sums = gl.zeros([columns, first_rows], gl.float32, layout)
    if cut.more_rows > 0:
        others: gl.constexpr = cut.more_rows
        more_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, others, 16])
        more_sums = gl.zeros([columns, others], gl.float32, more_layout)
    for index in range(steps):
        stage = index % cut.stages
        mbarrier.wait(there.index(stage), (index // cut.stages) & 1)
        own = weights.index(stage).slice(GROUP * columns, columns, dim=0)
        sums = warpgroup_mma(own, rows.index(stage).permute((1, 0)), sums, is_async=True)
        if cut.more_rows > 0:
            more_sums = warpgroup_mma(own, more_rows.index(stage).permute((1, 0)), more_sums, is_async=True)
            sums, more_sums = warpgroup_mma_wait(0, deps=[sums, more_sums])
        else:
            sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(free.index(stage))
    group = gl.program_id(0) * cut.groups + GROUP
    # who has no share of the width has waited for nobody yet, and writes where the kernel before may still read
    gdc_wait()
    if cut.gated:
        # this group's weights were all used: their room is the answer's
        _meet()
        room = weights.index(0).slice(GROUP * columns, columns, dim=0)
        _gate(sums, room, written, group * (columns // 2), 0, cut.gelu)
        if cut.more_rows > 0:
            more_room = weights.index(1).slice(GROUP * columns, columns, dim=0)
            _gate(more_sums, more_room, more_written, group * (columns // 2), first_rows, cut.gelu)
        tma.store_wait(0)
    else:
        _keep_part(sums, parts, group * columns, 0, count, outputs)
        if cut.more_rows > 0:
            _keep_part(more_sums, parts, group * columns, first_rows, count, outputs)


@gluon.jit
def _work(
    hidden, more_hidden, weight, written, more_written, parts, rows, more_rows, weights, free, there, count, outputs,
    width, PLACE: gl.constexpr, cut: gl.constexpr,
):  # fmt: skip
    """The work of some of a program's warps: after the groups that multiply comes the warp that brings."""
    if cut.groups > PLACE:
        _multiply_tiles(
            written, more_written, parts, rows, more_rows, weights, free, there, count, outputs, width, PLACE, cut
        )  # fmt: skip
    else:
        _bring_tiles(hidden, more_hidden, weight, rows, more_rows, weights, free, there, outputs, width, cut)


@gluon.jit(do_not_specialize=["count", "outputs", "width"])
def early_product(
    hidden, more_hidden, weight, written, more_written, parts, count, outputs, width, cut: gl.constexpr
):  # fmt: skip
    stages: gl.constexpr = cut.stages
    columns: gl.constexpr = weight.block_shape[0] * cut.groups * (2 if cut.gated else 1)
    step: gl.constexpr = hidden.block_shape[1]
    rows = gl.allocate_shared_memory(hidden.dtype, [stages, hidden.block_shape[0], step], hidden.layout)
    more_rows = rows
    if cut.more_rows > 0:
        others: gl.constexpr = cut.more_rows
        more_rows = gl.allocate_shared_memory(hidden.dtype, [stages, others, step], more_hidden.layout)
    weights = gl.allocate_shared_memory(weight.dtype, [stages, columns, step], weight.layout)
    free = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    there = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(free.index(stage), count=cut.groups)
        mbarrier.init(there.index(stage), count=1)
    groups: gl.constexpr = cut.groups
    gl.warp_specialize(
        [
            (
                _work,
                (hidden, more_hidden, weight, written, more_written, parts, rows, more_rows, weights, free, there,
                 count, outputs, width, gl.constexpr(place), cut),
            )
            for place in (0, 1, 2)[: groups + 1]
        ],
        [4] * (groups - 1) + [1],
        [cut.registers] * (groups - 1) + [BRINGING_REGISTERS],
    )  # fmt: skip
