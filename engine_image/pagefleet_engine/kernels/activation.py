"""The gated activation of an MLP: act(gate) · up, the activation rounded to the model dtype as transformers does."""

from typing import Literal

import torch
import triton
import triton.language as tl

from pagefleet_engine.kernels.overlap import wait_for_inputs

Activation = Literal["silu", "gelu_tanh"]
Cut = tuple[int, int]
"""Columns and warps of one program."""

_FEW_ROWS = 16


@triton.jit
def activated(gate, GELU: tl.constexpr):
    """SiLU or GELU of float32 values; in GELU's tanh form 0.5 · (1 + tanh(u)) is the sigmoid of 2u."""
    if GELU:
        return gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))  # 2 · √(2 / π)
    return gate * tl.sigmoid(gate)


@triton.jit
def _gated_kernel(
    gate_up, out, row_stride, out_stride,
    INNER: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    dtype = out.dtype.element_ty
    wait_for_inputs(PDL)
    source = gate_up + row * row_stride + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + INNER, mask=inside, other=0.0).to(tl.float32)
    result = activated(gate, GELU).to(dtype).to(tl.float32) * up
    tl.store(out + row * out_stride + columns, result.to(dtype), mask=inside)


def gated(
    gate_up: torch.Tensor, kind: Activation, *, in_place: bool = False, cut: Cut | None = None, pdl: bool = False
) -> torch.Tensor:
    """[rows, inner] from `gate_up` [rows, 2 · inner] (gates first); rows may be strided.

    `in_place` writes over the gates, and the result is a view of them.
    """
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    # each program writes where it alone has read
    out = gate_up[:, :inner] if in_place else torch.empty((rows, inner), dtype=gate_up.dtype, device=gate_up.device)
    block, warps = cut or ((256, 1) if rows <= _FEW_ROWS else (2048, 8))
    if rows:
        grid = (rows, triton.cdiv(inner, block))
        _gated_kernel[grid](
            gate_up, out, gate_up.stride(0), out.stride(0), INNER=inner, BLOCK=block, GELU=kind == "gelu_tanh", PDL=pdl,
            num_warps=warps, launch_pdl=pdl,
        )  # fmt: skip
    return out
