"""Decode steps as CUDA graphs: one for each of a few batch sizes, from the step's inputs to the sampled tokens."""

import bisect
import logging
import time
from collections.abc import Callable, Sequence

import torch

from pagefleet_engine.runner.cuda.captured import CapturedSizes

SMALL_SIZES = (1, 2, 4, 8)
SIZE_STEP, LARGE_SIZE_STEP, LARGE_FROM = 8, 16, 256
log = logging.getLogger(__name__)

Body = Callable[[int], None]
"""A decode step of so many rows, from `kernels.prepare.StepInputs` to the sampled tokens, on the current stream."""


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The sizes to capture, ascending; the largest is `max_num_seqs` itself."""
    sizes = {size for size in SMALL_SIZES if size <= max_num_seqs}
    sizes |= set(range(SIZE_STEP, min(max_num_seqs, LARGE_FROM) + 1, SIZE_STEP))
    sizes |= set(range(LARGE_FROM, max_num_seqs + 1, LARGE_SIZE_STEP)) if max_num_seqs > LARGE_FROM else set()
    return tuple(sorted(sizes | {max_num_seqs}))


def first_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Those worth waiting for: the largest halved again and again, so that no batch is padded to over about twice."""
    wanted, size = {size for size in SMALL_SIZES if size in sizes}, sizes[-1]
    while size > SMALL_SIZES[-1]:
        wanted.add(sizes[bisect.bisect_left(sizes, size)])
        size //= 2
    return tuple(sorted(wanted | {sizes[-1]}))


class DecodeGraphs:
    """Captures `body` for sizes, in one memory pool."""

    def __init__(self, body: Body, sizes: Sequence[int]) -> None:
        self._body = body
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.sizes = CapturedSizes(sizes, self._capture)

    def replay(self, size: int) -> None:
        """Launch the graph of a captured size."""
        self._graphs[size].replay()

    def _capture(self, size: int) -> None:
        started = time.perf_counter()
        graph = torch.cuda.CUDAGraph()
        self._body(size)  # compiles kernels and warms libraries up, which a capture must not do
        torch.cuda.synchronize()
        # other threads, such as NCCL's, may ask the device for something meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._body(size)
        self._graphs[size] = graph
        log.debug("graph_captured", extra={"size": size, "seconds": round(time.perf_counter() - started, 3)})
