"""RMS norms, alone and with the residual addition before them, one program a row, float32 inside.

Rounding follows transformers (`LlamaRMSNorm`, `Gemma3RMSNorm`, `Olmo2RMSNorm`): sums into the residual are
rounded to the model dtype, then normed; Llama rounds the normed value before the weight's product, the
others after it.
"""

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.overlap import wait_for_inputs

_ELEMENTS_PER_THREAD = 16
_MAX_WARPS = 16


@triton.jit
def summed(places, inside, part_stride, PARTS: tl.constexpr, dtype: tl.constexpr):
    """What lies at `places`, in float32: of a product in parts their sum, rounded as a whole product's."""
    values = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        values += tl.load(places + part * part_stride, mask=inside, other=0.0)
    return values.to(dtype).to(tl.float32)


@triton.jit
def normed(values, weight, hidden: tl.constexpr, eps, unit_offset: tl.constexpr, round_first: tl.constexpr):
    """One float32 row over its root mean square, times `weight`; not yet rounded to the weight's dtype."""
    scaled = values * tl.rsqrt(tl.sum(values * values, axis=0) / hidden + eps)
    if unit_offset:
        return scaled * (weight.to(tl.float32) + 1.0)
    if round_first:
        scaled = scaled.to(weight.dtype).to(tl.float32)
    return scaled * weight.to(tl.float32)


@triton.jit
def _norm_kernel(
    source,
    residual,
    out,
    post_weight,
    next_weight,
    source_stride,
    residual_stride,
    out_stride,
    part_stride,
    eps,
    delta_scale,
    PARTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    SCALE: tl.constexpr,
    POST: tl.constexpr,
    NEXT: tl.constexpr,
    UNIT_OFFSET: tl.constexpr,
    ROUND_FIRST: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    dtype = out.dtype.element_ty
    if NEXT:
        # nothing before this kernel writes it
        weight = tl.load(next_weight + columns, mask=inside, other=0.0)
    wait_for_inputs(PDL)
    values = summed(source + row * source_stride + columns, inside, part_stride, PARTS, dtype)
    if ADD:
        if POST:
            post = tl.load(post_weight + columns, mask=inside, other=0.0)
            values = normed(values, post, HIDDEN, eps, UNIT_OFFSET, ROUND_FIRST).to(dtype).to(tl.float32)
        if SCALE:
            values = (values * delta_scale).to(dtype).to(tl.float32)
        target = residual + row * residual_stride + columns
        values = (tl.load(target, mask=inside, other=0.0).to(tl.float32) + values).to(dtype)
        tl.store(target, values, mask=inside)
        values = values.to(tl.float32)
    if NEXT:
        values = normed(values, weight, HIDDEN, eps, UNIT_OFFSET, ROUND_FIRST)
    tl.store(out + row * out_stride + columns, values.to(dtype), mask=inside)


def rms_norm(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    unit_offset: bool = False,
    round_first: bool = True,
    out: torch.Tensor | None = None,
    warps: int | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """`hidden` [rows, width] normed into `out` (new where None; it may be `hidden` itself).

    Rows may be strided; the last dimension is contiguous. `unit_offset` multiplies by 1 + weight in float32
    (Gemma); without `round_first` the weight is applied in float32 too (OLMo 2).
    """
    out = _like(hidden) if out is None else out
    _launch(hidden, None, out, None, weight, eps, 1.0, unit_offset, round_first, warps, pdl)
    return out


def add_rms_norm(
    delta: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    unit_offset: bool = False,
    delta_scale: float = 1.0,
    round_first: bool = True,
    warps: int | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """`residual` += `delta` · `delta_scale` in place (both [rows, width]); the normed rows are returned.

    `delta` may be in parts, float32 [parts, rows, width] (`early_gemm.partial_product`).
    """
    out = _like(residual)
    _launch(delta, residual, out, None, weight, eps, delta_scale, unit_offset, round_first, warps, pdl)
    return out


def sandwich(
    delta: torch.Tensor,
    post_weight: torch.Tensor,
    residual: torch.Tensor,
    next_weight: torch.Tensor | None,
    eps: float,
    *,
    unit_offset: bool = False,
    delta_scale: float = 1.0,
    round_first: bool = True,
    warps: int | None = None,
    pdl: bool = False,
) -> torch.Tensor:
    """`residual` += norm(`delta`) · `delta_scale` in place, then the next norm of it (Gemma 2 and 3, OLMo 2).

    Without `next_weight` the result is a copy of the residual. `delta` may be in parts, as in `add_rms_norm`.
    """
    out = _like(residual)
    _launch(delta, residual, out, post_weight, next_weight, eps, delta_scale, unit_offset, round_first, warps, pdl)
    return out


def _launch(
    source: torch.Tensor,
    residual: torch.Tensor | None,
    out: torch.Tensor,
    post_weight: torch.Tensor | None,
    next_weight: torch.Tensor | None,
    eps: float,
    delta_scale: float,
    unit_offset: bool,
    round_first: bool,
    warps: int | None,
    pdl: bool,
) -> None:
    rows, hidden = source.shape[-2:]
    if rows == 0:
        return
    block = triton.next_power_of_2(hidden)
    target = out if residual is None else residual
    parts = source.shape[0] if source.dim() == 3 else 1
    _norm_kernel[(rows,)](
        source,
        target,
        out,
        source if post_weight is None else post_weight,
        source if next_weight is None else next_weight,
        source.stride(-2),
        target.stride(0),
        out.stride(0),
        source.stride(0),
        eps,
        delta_scale,
        PARTS=parts,
        HIDDEN=hidden,
        BLOCK=block,
        ADD=residual is not None,
        SCALE=delta_scale != 1.0,
        POST=post_weight is not None,
        NEXT=next_weight is not None,
        UNIT_OFFSET=unit_offset,
        ROUND_FIRST=round_first,
        PDL=pdl,
        launch_pdl=pdl,
        num_warps=warps or _warps(block, parts),
    )


def _warps(block: int, parts: int) -> int:
    # parts are read beside each other: half as many of each by a thread
    share = _ELEMENTS_PER_THREAD if parts == 1 else _ELEMENTS_PER_THREAD // 2
    return min(max(block // (32 * share), 1), _MAX_WARPS)


def _like(rows: torch.Tensor) -> torch.Tensor:
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
