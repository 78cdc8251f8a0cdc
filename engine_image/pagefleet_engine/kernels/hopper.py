"""What kernels in Gluon share: blocks of matrices, as Hopper's tensor memory accelerator brings and writes them.

Gluon is Triton's language for what its compiler would decide otherwise.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pagefleet_engine.kernels.activation import activated

BRINGING_REGISTERS: gl.constexpr = gl.constexpr(24)
"""Of each thread of the warp that brings: it computes places alone."""
ALIGNED_BYTES = 16
"""Where each row of such a matrix has to lie."""

# by the newer name of each, or by that of Triton 3.6
bring = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
write = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def gate(gates, ups, gelu: gl.constexpr, dtype: gl.constexpr):
    """act(gate) · up of float32 sums, rounded where a product and an activation apart would round."""
    gates = activated(gates.to(dtype).to(gl.float32), gelu).to(dtype).to(gl.float32)
    return (gates * ups.to(dtype).to(gl.float32)).to(dtype)


def can_bring(*matrices: torch.Tensor) -> bool:
    """Whether these have such blocks: 16-bit numbers of one format, in rows that lie on 16 bytes, on Hopper."""
    first = matrices[0]
    half = first.dtype in {torch.bfloat16, torch.float16} and all(matrix.dtype == first.dtype for matrix in matrices)
    aligned = all(
        matrix.stride(-1) == 1 and matrix.stride(0) * matrix.element_size() % ALIGNED_BYTES == 0
        and matrix.data_ptr() % ALIGNED_BYTES == 0
        for matrix in matrices
    )  # fmt: skip
    return half and aligned and not first.is_cpu and torch.cuda.get_device_capability(first.device)[0] == 9


def multiprocessors(tensor: torch.Tensor) -> int:
    """How many there are on the tensor's GPU."""
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def blocks(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """`matrix` in blocks of `rows` x `columns`; what reaches past its end is zero, and not written."""
    numbers = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], numbers)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)
