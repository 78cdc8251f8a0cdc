"""Linear layers of a few rows, with what stands before and after them in the same kernel.

At a handful of rows a layer's time is that of reading its weights once. Fusing the norm before it, and the
gated activation or the residual addition after it, saves the launches between. Every output element is summed
by one program in a fixed order. Weights are [out, width] and contiguous.

With one row the norm is part of the kernel: its scale depends on the whole row, so it multiplies the finished
sums, and nothing is rounded between. Several rows are normed by a launch of their own; in every program's loop
that took longer than the launch (measured on an H200).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional

from pagefleet_engine.kernels import norm as norms
from pagefleet_engine.kernels.activation import Activation, activated
from pagefleet_engine.kernels.overlap import prefetch, wait_for_inputs

MAX_ROWS = 16
_LIBRARY_OUTPUTS = 16384
"""From so many outputs on cuBLAS reads the weights of several rows at the memory's full rate."""
_ROW_TILE = tl.constexpr(16)
_PREFETCHED_LINES = tl.constexpr(256)


class Config(NamedTuple):
    """How a kernel is cut: outputs a program, width a step (of one warp with `dot`), warps, load stages.

    With `dot` the matrix units multiply, each warp its own part of the width; without it a row is one vector.
    """

    dot: bool
    block_out: int
    block_width: int
    warps: int
    stages: int


class Norm(NamedTuple):
    """The RMS norm before a layer; `unit_offset` multiplies by 1 + weight."""

    weight: torch.Tensor
    eps: float
    unit_offset: bool = False


@triton.jit
def _prefetch_rows(rows, WIDTH: tl.constexpr, BLOCK_OUT: tl.constexpr):
    """Ask for the first part of weight rows while the kernel before this one still runs; 64 columns a line."""
    lines = tl.arange(0, _PREFETCHED_LINES // BLOCK_OUT)[None, :] * 64
    prefetch(rows + tl.minimum(lines, WIDTH - 1))


@triton.jit
def _norm_weight(weights, inside, UNIT_OFFSET: tl.constexpr):
    weight = tl.load(weights, mask=inside, other=0.0).to(tl.float32)
    if UNIT_OFFSET:
        weight += 1.0
    return weight


@triton.jit
def _finish(
    sums, ups, scale, bias, residual, out, rows, outputs, row_stride, inside, delta_scale, OUT: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Scale, bias, activation and residual of one tile of sums, rounded where separate layers would round."""
    dtype = out.dtype.element_ty
    sums = sums * scale
    if BIAS:
        sums += tl.load(bias + outputs, mask=outputs < OUT, other=0.0).to(tl.float32)
    sums = sums.to(dtype).to(tl.float32)
    if GATED:
        ups = ups * scale
        if BIAS:
            ups += tl.load(bias + OUT + outputs, mask=outputs < OUT, other=0.0).to(tl.float32)
        sums = activated(sums, GELU).to(dtype).to(tl.float32) * ups.to(dtype).to(tl.float32)
    if SCALE:
        sums = (sums * delta_scale).to(dtype).to(tl.float32)
    if ADD:
        sums += tl.load(residual + rows * row_stride + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + rows * row_stride + outputs, sums.to(dtype), mask=inside)


@triton.jit
def _vector_kernel(
    hidden, norm_weight, weight, bias, residual, out, out_stride, eps, delta_scale,
    OUT: tl.constexpr, WIDTH: tl.constexpr, NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_WIDTH: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: every thread keeps the sums of its own columns until the end."""
    first = tl.program_id(0) * BLOCK_OUT
    places = tl.arange(0, BLOCK_OUT)[:, None]
    outputs = first + places
    columns = tl.arange(0, BLOCK_WIDTH)[None, :]
    row = weight + first.to(tl.int64) * WIDTH + tl.minimum(places, OUT - 1 - first) * WIDTH
    if PDL:
        _prefetch_rows(row, WIDTH, BLOCK_OUT)
        if GATED:
            _prefetch_rows(row + OUT * WIDTH, WIDTH, BLOCK_OUT)
    wait_for_inputs(PDL)
    sums = tl.zeros((BLOCK_OUT, BLOCK_WIDTH), tl.float32)
    ups = tl.zeros((BLOCK_OUT, BLOCK_WIDTH), tl.float32)
    # Pipelined loads are read back in any layout; others are best made in the weights' own.
    wide = columns if STAGES > 1 else columns + places * 0
    squares = tl.zeros(wide.shape, tl.float32)
    for start in tl.range(0, WIDTH, BLOCK_WIDTH, num_stages=STAGES):
        inside = start + columns < WIDTH
        wide_inside = start + wide < WIDTH
        weights = tl.load(row + start + columns, mask=inside, other=0.0, eviction_policy="evict_first")
        if GATED:
            up_weights = tl.load(
                row + OUT * WIDTH + start + columns, mask=inside, other=0.0, eviction_policy="evict_first"
            )
        values = tl.load(hidden + start + wide, mask=wide_inside, other=0.0).to(tl.float32)
        if NORM:
            squares += values * values
            values *= _norm_weight(norm_weight + start + wide, wide_inside, UNIT_OFFSET)
        sums += weights.to(tl.float32) * values
        if GATED:
            ups += up_weights.to(tl.float32) * values
    scale = 1.0
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / WIDTH + eps)
    total = tl.sum(sums, axis=1, keep_dims=True)
    up_total = total
    if GATED:
        up_total = tl.sum(ups, axis=1, keep_dims=True)
    _finish(
        total, up_total, scale, bias, residual, out, 0, outputs, out_stride, outputs < OUT, delta_scale,
        OUT, BIAS, GATED, GELU, ADD, SCALE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _dot_kernel(
    hidden, weight, bias, residual, out, rows, hidden_stride, out_stride, delta_scale,
    OUT: tl.constexpr, WIDTH: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr, SCALE: tl.constexpr,
    BLOCK_OUT: tl.constexpr, BLOCK_WIDTH: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Up to 16 rows: a batched product in which each warp has a part of the width; parts are added at the end."""
    first = tl.program_id(0) * BLOCK_OUT
    places = tl.arange(0, BLOCK_OUT)
    outputs = first + places
    known = tl.minimum(places, OUT - 1 - first)[None, None, :]
    row = tl.arange(0, _ROW_TILE)
    parts = tl.arange(0, SPLITS)[:, None, None] * BLOCK_WIDTH
    columns = parts + tl.arange(0, BLOCK_WIDTH)[None, None, :]
    weight_columns = parts + tl.arange(0, BLOCK_WIDTH)[None, :, None]
    row_inside = (row < rows)[None, :, None]
    sources = hidden + row[None, :, None] * hidden_stride + columns
    weight_rows = weight + first.to(tl.int64) * WIDTH + known * WIDTH + weight_columns
    if PDL:
        row_starts = weight + first.to(tl.int64) * WIDTH + tl.minimum(places, OUT - 1 - first)[:, None] * WIDTH
        _prefetch_rows(row_starts, WIDTH, BLOCK_OUT)
        if GATED:
            _prefetch_rows(row_starts + OUT * WIDTH, WIDTH, BLOCK_OUT)
    wait_for_inputs(PDL)
    sums = tl.zeros((SPLITS, _ROW_TILE, BLOCK_OUT), tl.float32)
    ups = tl.zeros((SPLITS, _ROW_TILE, BLOCK_OUT), tl.float32)
    for start in tl.range(0, WIDTH, SPLITS * BLOCK_WIDTH, num_stages=STAGES):
        inside = start + weight_columns < WIDTH
        weights = tl.load(weight_rows + start, mask=inside, other=0.0, eviction_policy="evict_first")
        values = tl.load(sources + start, mask=row_inside & (start + columns < WIDTH), other=0.0)
        sums = tl.dot(values, weights, sums, input_precision="ieee")
        if GATED:
            up_weights = tl.load(
                weight_rows + OUT * WIDTH + start, mask=inside, other=0.0, eviction_policy="evict_first"
            )
            ups = tl.dot(values, up_weights, ups, input_precision="ieee")
    total = tl.sum(sums, axis=0)
    up_total = total
    if GATED:
        up_total = tl.sum(ups, axis=0)
    inside = (row < rows)[:, None] & (outputs < OUT)[None, :]
    _finish(
        total, up_total, 1.0, bias, residual, out, row[:, None], outputs[None, :], out_stride, inside, delta_scale,
        OUT, BIAS, GATED, GELU, ADD, SCALE,
    )  # fmt: skip


def fits(rows: int, weight: torch.Tensor) -> bool:
    """Whether these kernels can compute `rows` rows of a layer with this weight."""
    return 1 <= rows <= MAX_ROWS and weight.is_contiguous() and weight.is_floating_point()


def linear(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: Norm | None = None,
    bias: torch.Tensor | None = None,
    config: Config | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """[rows, out] = norm(`hidden` [rows, width]) · `weight`ᵀ + `bias`; rows may be strided."""
    if len(hidden) > 1 and len(weight) >= _LIBRARY_OUTPUTS and config is None:
        return functional.linear(_normed(hidden, norm, pdl), weight, bias)
    out = torch.empty((hidden.shape[0], weight.shape[0]), dtype=hidden.dtype, device=hidden.device)
    _launch(hidden, weight, out, norm=norm, bias=bias, config=config, pdl=pdl)
    return out


def gated_linear(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    kind: Activation,
    *,
    norm: Norm | None = None,
    bias: torch.Tensor | None = None,
    config: Config | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """[rows, inner] = act(gate) · up, where gate and up are `linear`'s halves; `weight` [2 · inner, width]."""
    out = torch.empty((hidden.shape[0], weight.shape[0] // 2), dtype=hidden.dtype, device=hidden.device)
    _launch(hidden, weight, out, norm=norm, bias=bias, kind=kind, config=config, pdl=pdl)
    return out


def linear_add_(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    *,
    delta_scale: float = 1.0,
    bias: torch.Tensor | None = None,
    config: Config | None = None,
    pdl: bool = False,
) -> None:
    """`residual` [rows, out] += (`hidden` · `weight`ᵀ + `bias`) · `delta_scale`, in place."""
    _launch(hidden, weight, residual, bias=bias, add=True, delta_scale=delta_scale, config=config, pdl=pdl)


def choose(rows: int, outputs: int, width: int, *, gated: bool = False, normed: bool = False) -> Config:
    """A good cut for `rows` rows of a layer, as measured on an H200; `outputs` counts pairs where `gated`."""
    if rows > 1:
        return Config(True, 16 if outputs >= 4096 else 8, 128, 4, 3)
    if gated:
        return Config(False, 4 if outputs >= 8192 else 2, 1024, 4, 1)
    if outputs >= _LIBRARY_OUTPUTS:
        return Config(False, 16, 256, 4, 4) if width >= 2048 else Config(False, 4, 1024, 4, 1)
    if normed:
        return Config(False, 2, 1024, 4, 1)
    return Config(False, 8, 512, 4, 4) if outputs >= 2048 else Config(False, 8, 512, 8, 1)


def _normed(hidden: torch.Tensor, norm: Norm | None, pdl: bool) -> torch.Tensor:
    if norm is None:
        return hidden
    return norms.rms_norm(hidden, norm.weight, norm.eps, unit_offset=norm.unit_offset, pdl=pdl)


def _launch(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    norm: Norm | None = None,
    bias: torch.Tensor | None = None,
    kind: Activation | None = None,
    add: bool = False,
    delta_scale: float = 1.0,
    config: Config | None = None,
    pdl: bool = False,
) -> None:
    (rows, width), outputs = hidden.shape, out.shape[1]
    config = config or choose(rows, outputs, width, gated=kind is not None, normed=norm is not None)
    if not fits(rows, weight) or (rows > 1 and not config.dot):
        raise ValueError(f"no kernel for {rows} rows of {weight.dtype}")
    flags = {
        "OUT": outputs, "WIDTH": width, "BIAS": bias is not None, "GATED": kind is not None,
        "GELU": kind == "gelu_tanh", "ADD": add, "SCALE": delta_scale != 1.0, "BLOCK_OUT": config.block_out,
        "BLOCK_WIDTH": config.block_width, "STAGES": config.stages, "PDL": pdl, "num_warps": config.warps,
        "launch_pdl": pdl,
    }  # fmt: skip
    grid = (triton.cdiv(outputs, config.block_out),)
    shift = hidden if bias is None else bias
    if config.dot:
        hidden = _normed(hidden, norm, pdl)
        _dot_kernel[grid](
            hidden, weight, shift, out, out, rows, hidden.stride(0), out.stride(0), delta_scale,
            SPLITS=config.warps, **flags,
        )  # fmt: skip
    else:
        _vector_kernel[grid](
            hidden, hidden if norm is None else norm.weight, weight, shift, out, out, out.stride(0),
            0.0 if norm is None else norm.eps, delta_scale, NORM=norm is not None,
            UNIT_OFFSET=norm is not None and norm.unit_offset, **flags,
        )  # fmt: skip
