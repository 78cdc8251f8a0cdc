"""Steps with prompts in them as CUDA graphs from one attention to the next.

Attention depends on which chunks a step holds, the rest on the number of rows alone. So a step of so many rows is a
row of graphs, one for each layer, with the attention launched between; a step is padded to the next captured number.
"""

import bisect
from collections.abc import Sequence

import torch

from pagefleet_engine.runner.cuda.attention import AttentionStep, LayersAttention
from pagefleet_engine.runner.cuda.captured import CapturedSizes
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.rows import StepRows

SMALLEST_ROWS = 32
STEPS = ((0, 32), (256, 128), (2048, 256), (4096, 512))
"""From so many rows on the captured numbers lie so far apart: padding costs at most a sixteenth beyond 2,048 rows."""


def row_counts(max_rows: int) -> tuple[int, ...]:
    """The numbers of rows to capture, ascending; the largest is `max_rows`."""
    counts = {max_rows}
    ends = [first for first, _ in STEPS[1:]] + [max_rows]
    for (first, step), end in zip(STEPS, ends, strict=True):
        counts |= set(range(first + step, min(end, max_rows) + 1, step))
    return tuple(sorted(counts))


def first_counts(counts: Sequence[int]) -> tuple[int, ...]:
    """Those worth waiting for at the start: the largest halved again and again.

    A pod that is busy from its first moment never rests to capture the others: it pads steps to twice their rows.
    """
    wanted, rows = set[int](), counts[-1]
    while rows > SMALLEST_ROWS:
        wanted.add(counts[bisect.bisect_left(counts, rows)])
        rows //= 2
    return tuple(sorted(wanted | {counts[-1]}))


class SegmentGraphs:
    """The graphs of each captured number of rows, all in one memory pool, and the rows that they pass on."""

    def __init__(self, decoder: CudaDecoder, inputs: StepRows, counts: Sequence[int]) -> None:
        """`inputs` are where each step's rows are found; `counts` may be empty, then nothing fits."""
        self._decoder, self._inputs = decoder, inputs
        self.counts = CapturedSizes(counts, self._capture)
        self._graphs: dict[int, list[torch.cuda.CUDAGraph]] = {}
        self._pool = torch.cuda.graph_pool_handle() if counts else None
        largest = max(counts, default=0)
        config = decoder.config
        self._residual = decoder.new_rows(largest, config.hidden_size)
        self._qkv = decoder.new_rows(largest, decoder.qkv_size)
        copied = max((count for count in counts if not decoder.sums_in_products(count)), default=0)
        self._attended = decoder.new_rows(copied, config.heads * config.head_size).zero_()

    def run(self, count: int, attention: AttentionStep, kept: torch.Tensor | None) -> torch.Tensor:
        """A step of `count` rows, padding counted in, whose inputs are in place; as `CudaDecoder.forward`."""
        decoder = self._decoder
        residual, qkv = self._residual[:count], self._qkv[:count]
        joined = decoder.sums_in_products(count)
        into = None if joined else self._attended[:count]
        layers = LayersAttention(decoder.attention, qkv, attention, into)
        with decoder.attention.backends(attention):
            for index, graph in enumerate(self._graphs[count]):
                graph.replay()
                attended = layers.attend(decoder.memory[index], decoder.config.attention[index].window)
                if joined and index + 1 < decoder.config.layers:
                    decoder.join(index, attended, residual[: len(attended)])
        adapters = self._inputs.adapters[: len(attended)]
        return decoder.finish(attended, residual[: len(attended)], adapters, kept)

    def _capture(self, count: int) -> None:
        rows = StepRows(*(tensor[:count] for tensor in self._inputs))
        decoder, layers = self._decoder, self._decoder.config.layers
        residual, qkv = self._residual[:count], self._qkv[:count]
        attended = None if decoder.sums_in_products(count) else self._attended[:count]
        decoder.begin(rows, residual, qkv)  # compiles kernels and warms libraries up, which a capture must not do
        if layers > 1:
            decoder.proceed(0, rows, attended, residual, qkv)
        torch.cuda.synchronize()
        graphs = [torch.cuda.CUDAGraph() for _ in range(layers)]
        for index, graph in enumerate(graphs):
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                if index == 0:
                    decoder.begin(rows, residual, qkv)
                else:
                    decoder.proceed(index - 1, rows, attended, residual, qkv)
        self._graphs[count] = graphs
