"""Programmatic dependent launch (compute capability 9.0 on): a kernel is set up while the one before it ends.

A launcher's `pdl` turns it on. Such a kernel may read nothing but weights before it waits for the kernel before it, and
write nothing; it lets the kernel after it be set up at once, which then waits in the same way. Some thread of it waits
whatever it has to do: who waits for a kernel that ended waits for all before it, so that memory may change hands among
any of them.
"""

import triton
import triton.language as tl


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Let the next kernel be set up, and wait until what the one before wrote can be read."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointers):
    """Bring the cache lines at `pointers` into L2; nothing waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
