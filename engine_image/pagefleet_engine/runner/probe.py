"""Which number format is faster on this CPU, by measuring the model's own matrix shapes for a moment.

CPU flags do not tell: of two machines with bfloat16 instructions one was faster with them, one slower.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from pagefleet_engine.models.config import ModelConfig

DECODE_ROWS, PREFILL_ROWS = 1, 64
DECODE_WEIGHT, PREFILL_WEIGHT = 2, 1
NEEDED_GAIN = 1.1
"""bfloat16 must be this much faster to be taken: float32 is exact."""
_LAYERS = 3
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Seconds for a few layers' matrices with one and with 64 rows."""

    decode_s: float
    prefill_s: float


def faster_dtype(float32: ProbeTimes, bfloat16: ProbeTimes) -> str:
    """ "bfloat16" when its speed-up, decode weighed double, is worth its rounding; else "float32"."""
    gain = DECODE_WEIGHT * math.log(float32.decode_s / bfloat16.decode_s)
    gain += PREFILL_WEIGHT * math.log(float32.prefill_s / bfloat16.prefill_s)
    return "bfloat16" if gain > (DECODE_WEIGHT + PREFILL_WEIGHT) * math.log(NEEDED_GAIN) else "float32"


def measure(config: ModelConfig, dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter) -> ProbeTimes:
    """Time the linear layers of a few layers in `dtype`; several layers, so that caches do not flatter."""
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]
    with torch.inference_mode():
        matrices = [torch.full(shape, 0.01, dtype=dtype) for _ in range(_LAYERS) for shape in shapes]
        decode_s, prefill_s = (_time(matrices, rows, clock) for rows in (DECODE_ROWS, PREFILL_ROWS))
    return ProbeTimes(decode_s, prefill_s)


def _time(matrices: Sequence[torch.Tensor], rows: int, clock: Callable[[], float]) -> float:
    inputs = [torch.full((rows, matrix.shape[1]), 0.01, dtype=matrix.dtype) for matrix in matrices]
    best = math.inf
    for _ in range(_REPEATS + 1):
        started = clock()
        for matrix, given in zip(matrices, inputs, strict=True):
            functional.linear(given, matrix)
        best = min(best, clock() - started)
    return best
