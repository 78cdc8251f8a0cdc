"""The product with gates and ups, and the gated activation inside it, by Hopper's tensor memory accelerator.

A tile holds the same columns of gates and ups, so that only their product is written: the activation would read and
write twice as much again.
"""

import torch
import triton

from pagefleet_engine.kernels import early_gemm, gated_warps
from pagefleet_engine.kernels.activation import Activation
from pagefleet_engine.kernels.hopper import ALIGNED_BYTES, can_bring, multiprocessors


def pays(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether these kernels can compute the product, and beat a product and an activation apart: on Hopper, with 16-bit
    numbers in rows that lie on 16 bytes, those of the product too."""
    if not can_bring(hidden, weight) or len(weight) // 2 * weight.element_size() % ALIGNED_BYTES:
        return False
    return faster(len(hidden), len(weight) // 2, multiprocessors(weight))


def faster(rows: int, inner: int, processors: int) -> bool:
    """Whether `rows` rows are of those that gain, as measured on an H200 (see bench/LOG.md), and its tiles fill most of
    the GPU."""
    if rows <= early_gemm.MAX_ROWS:
        # nothing can be brought of no rows
        return rows > 0 and 4 * early_gemm.gated_programs(rows, inner) >= 3 * processors
    height, columns = gated_warps.TILE
    tiles = triton.cdiv(rows, height) * triton.cdiv(inner, columns)
    return (240 < rows <= 256 or rows >= 384) and 4 * tiles >= 3 * processors


def gated_product(hidden: torch.Tensor, weight: torch.Tensor, kind: Activation) -> torch.Tensor:
    """[rows, inner] = act(gate) · up of `hidden` [rows, width] · `weight` [2 · inner, width]ᵀ, gates first."""
    few = len(hidden) <= early_gemm.MAX_ROWS
    return (early_gemm if few else gated_warps).gated_product(hidden, weight, kind)
