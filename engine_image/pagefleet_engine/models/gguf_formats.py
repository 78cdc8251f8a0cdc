"""The number formats of GGUF tensors: blocks of bytes to float32.

Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h (block_q4_0, block_q4_1, block_q8_0).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_HALF = 16
_Q4_ZERO = 8


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format: `decode` takes [blocks, block_bytes] to [blocks, block_elements]."""

    name: str
    block_elements: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]

    def size_bytes(self, shape: Sequence[int]) -> int | None:
        """Bytes of a tensor of this shape, or None when its rows are not whole blocks."""
        if min(shape) < 1 or shape[-1] % self.block_elements:
            return None
        return math.prod(shape) // self.block_elements * self.block_bytes


def _half_floats(blocks: Bytes, first: int) -> Floats:
    """The float16 at byte `first` of each block, shape [blocks, 1]."""
    halves: npt.NDArray[Any] = np.ascontiguousarray(blocks[:, first : first + 2]).view("<f2")
    return halves.astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """Low halves first, then high halves: [blocks, 16] bytes to [blocks, 32] numbers 0..15."""
    values = np.empty((len(packed), 2 * _HALF), np.float32)
    values[:, :_HALF] = packed & 15
    values[:, _HALF:] = packed >> 4
    return values


def _q4_0(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 2:])
    values -= _Q4_ZERO
    values *= _half_floats(blocks, 0)
    return values


def _q4_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 4:])
    values *= _half_floats(blocks, 0)
    values += _half_floats(blocks, 2)
    return values


def _q8_0(blocks: Bytes) -> Floats:
    result: Floats = np.multiply(blocks[:, 2:].view(np.int8), _half_floats(blocks, 0), dtype=np.float32)
    return result


def _f16(blocks: Bytes) -> Floats:
    return _half_floats(blocks, 0)


def _f32(blocks: Bytes) -> Floats:
    values: npt.NDArray[Any] = np.ascontiguousarray(blocks).view("<f4")
    return values.astype(np.float32)


FORMATS = {
    0: BlockFormat("F32", 1, 4, _f32),
    1: BlockFormat("F16", 1, 2, _f16),
    2: BlockFormat("Q4_0", 32, 18, _q4_0),
    3: BlockFormat("Q4_1", 32, 20, _q4_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
}
UNSUPPORTED_NAMES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip
