"""Products of few rows whose weights come while the kernel before still runs, on Hopper.

At few rows a product's time is that of reading its weights once. One warp brings them by the tensor memory
accelerator, as far ahead as there is room: weights depend on nobody, so the first ones come before the rows that they
are multiplied with (programmatic dependent launch, see `overlap`). The width is split over programs until they fill
the GPU; who reads the answer adds the parts up (`norm.summed`).
"""

import torch
import triton

from pagefleet_engine.kernels.activation import Activation
from pagefleet_engine.kernels.early_tiles import Cut, early_product
from pagefleet_engine.kernels.hopper import blocks, can_bring, multiprocessors

_TILES = ((16, 0), (32, 0), (64, 0), (64, 32), (128, 0), (128, 32), (128, 64))
"""Rows of a tile: the matrix units take powers of two, so some are two operands beside each other."""
MAX_ROWS = sum(_TILES[-1])
_LEAST_BYTES = 16 << 20
"""Of smaller weights there is not enough to bring ahead."""
_MANY_ROWS = 128
"""More are as much work to multiply as to bring: a product must fill the GPU then."""
_ROOM = 224 << 10
"""Bytes of shared memory that a multiprocessor's programs use for tiles."""
_MAX_PARTS = 8
_LARGEST_STEP = 128
"""Of the width; of more than 32 rows half of it, so that more tiles are in flight."""
_COLUMNS = 128
"""Of a tile; of a group of warps where it is gated, half of them gates."""


def pays(rows: int, weight: torch.Tensor) -> bool:
    """Whether `partial_product` can compute it and beats cuBLAS, as measured on an H200 (see bench/LOG.md)."""
    if not 0 < rows <= MAX_ROWS or weight.nbytes < _LEAST_BYTES or not can_bring(weight):
        return False
    if rows <= _MANY_ROWS:
        return True
    programs = triton.cdiv(len(weight), _COLUMNS) * _parts(weight)
    return bool(10 * programs >= 9 * multiprocessors(weight))


def partial_product(hidden: torch.Tensor, weight: torch.Tensor, *, parts: int | None = None) -> torch.Tensor:
    """[parts, rows, outputs] float32, whose sum over parts is `hidden` [rows, width] · `weight` [outputs, width]ᵀ.

    Of 1 to `MAX_ROWS` rows, which lie one after another; by default in as many parts as there are multiprocessors for.
    The kernel before may still write `hidden`, but not `weight`, which is read ahead of it.
    """
    count, outputs = len(hidden), len(weight)
    rows, more_rows = _tile(count)
    groups = 1 if rows + more_rows <= _MANY_ROWS else 2
    tiles = triton.cdiv(outputs, _COLUMNS)
    parts = parts or _parts(weight)
    sums = torch.empty((parts, count, outputs), dtype=torch.float32, device=hidden.device)
    _launch(hidden, weight, None, sums, (tiles, parts), groups, gelu=False)
    return sums


def gated_product(hidden: torch.Tensor, weight: torch.Tensor, kind: Activation) -> torch.Tensor:
    """[rows, inner] = act(gate) · up of `hidden` [rows, width] · `weight` [2 · inner, width]ᵀ, gates first.

    Of 1 to `MAX_ROWS` rows. As with `partial_product`, the kernel before may still write `hidden` alone.
    """
    count, inner = len(hidden), len(weight) // 2
    out = torch.empty((count, inner), dtype=hidden.dtype, device=hidden.device)
    grid = (gated_programs(count, inner), 1)
    _launch(hidden, weight, out, out, grid, _gated_groups(count), gelu=kind == "gelu_tanh")
    return out


def gated_programs(rows: int, inner: int) -> int:
    """How many programs `gated_product` has."""
    return int(triton.cdiv(inner, _COLUMNS // 2 * _gated_groups(rows)))


def _gated_groups(rows: int) -> int:
    # two programs of one group, or one of two, fill a multiprocessor
    return 1 if rows <= 64 else 2


def _launch(
    hidden: torch.Tensor, weight: torch.Tensor, written: torch.Tensor | None, parts: torch.Tensor,
    grid: tuple[int, int], groups: int, *, gelu: bool,
) -> None:  # fmt: skip
    (count, width), gated = hidden.shape, written is not None
    rows, more_rows = _tile(count)
    outputs = len(weight) // 2 if gated else len(weight)
    step = _LARGEST_STEP if rows <= 32 else _LARGEST_STEP // 2
    columns = _COLUMNS * groups if gated else _COLUMNS
    programs = 2 if gated and groups == 1 else 1
    stages = _ROOM // programs // ((columns + rows + more_rows) * step * weight.element_size())
    box = columns // groups // (2 if gated else 1)
    # a thread's; for many a multiprocessor's registers go to its 384 threads, and the bringing ones' on to the others
    sums = columns // groups * (rows + more_rows) // 128
    registers, of_second = (168, 240) if groups == 2 and sums > 96 else (128, 168)
    cut = Cut(stages, groups, gated, gelu, more_rows, of_second)
    # what is not used must be there all the same
    left, right = blocks(hidden, rows, step), blocks(hidden, more_rows or 16, step)
    answers = (left, right) if written is None else (blocks(written, rows, box), blocks(written, more_rows or 16, box))
    early_product[grid](
        left, right, blocks(weight, box, step), *answers, parts, count, outputs, width, cut,
        num_warps=4, maxnreg=registers, launch_pdl=True,
    )  # fmt: skip


def _tile(rows: int) -> tuple[int, int]:
    return next(tile for tile in _TILES if sum(tile) >= rows)


def _parts(weight: torch.Tensor) -> int:
    """As many as there are multiprocessors for, and at least a step of the width for each."""
    programs = multiprocessors(weight) // triton.cdiv(len(weight), _COLUMNS)
    most, parts = min(programs, triton.cdiv(weight.shape[1], _LARGEST_STEP), _MAX_PARTS), 1
    while 2 * parts <= most:
        parts *= 2
    return parts
