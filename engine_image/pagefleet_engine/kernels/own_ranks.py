"""Of what a batch was multiplied by all LoRA adapters' ranks, each row keeps those of its own adapter."""

import torch
import triton
import triton.language as tl

_MOST_RANKS = 1024
"""Of one program."""


@triton.jit
def _keep_own(inner, owners, adapters, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    rank = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = rank < RANKS
    owner = tl.load(owners + rank, mask=inside, other=0)
    foreign = owner != tl.load(adapters + row)
    # what others' ranks made of the row may be no number at all, so it is not multiplied by anything
    tl.store(inner + row.to(tl.int64) * RANKS + rank, tl.zeros((BLOCK,), inner.dtype.element_ty), mask=inside & foreign)


def keep_own(inner: torch.Tensor, owners: torch.Tensor, adapters: torch.Tensor) -> None:
    """Make 0, in place, what of `inner` [rows, ranks] is not the row's own.

    `owners` ([ranks] int32) are the ranks' adapters, `adapters` ([rows] int32) those that the rows want.
    """
    rows, ranks = inner.shape
    if rows:
        block = min(triton.next_power_of_2(ranks), _MOST_RANKS)
        _keep_own[(rows, triton.cdiv(ranks, block))](inner, owners, adapters, RANKS=ranks, BLOCK=block, num_warps=1)
