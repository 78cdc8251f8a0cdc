"""How many bytes a model's weights take on the GPU, from the best that is known of its tensors. Pure.

A safetensors file begins with 8 bytes (little-endian length), then JSON: each tensor's `dtype`, `shape` and
`data_offsets`. Source: https://huggingface.co/docs/safetensors, "Format".
"""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_api.sizing.model import ModelShape

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100 << 20
"""As the format itself bounds it."""
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
                 "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}  # fmt: skip
"""By the names that config.json, engines and the resource use."""
_FLOATS = frozenset({"F32", "F16", "BF16", "F64"})
_BITS_BY_NAME = (("fp4", 4), ("int4", 4), ("bitsandbytes", 4), ("fp8", 8), ("int8", 8))
_GROUPED_BITS, _GROUP, _GROUP_BYTES = 4, 128, 2.5
"""4-bit weights keep a 16-bit scale and a 4-bit zero for each group of 128 (GPTQ and AWQ's usual)."""


_MOST_BYTES = 10**18
"""What an index says beyond it is no size."""


class Source(StrEnum):
    """Where the number of bytes comes from, the surest first."""

    TENSORS = "tensors"
    INDEX = "index"
    CONFIG = "config"


class Weights(NamedTuple):
    """Bytes that the whole model's weights take in the number format that it runs in."""

    total_bytes: int
    source: Source


class Tensor(NamedTuple):
    """One tensor in a file: safetensors' name of its number format, its numbers, its bytes."""

    dtype: str
    elements: int
    size_bytes: int


def read_header(header: bytes) -> list[Tensor]:
    """Of a safetensors file's header, without the length before it. Raises ConfigUnusable."""
    try:
        entries: Mapping[str, Any] = json.loads(header)
        return [_tensor(entry) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigUnusable(f"this is no header of a safetensors file: {error}") from error


def header_length(start: bytes) -> int:
    """Bytes of the header, from the first eight of the file. Raises ConfigUnusable for what is none."""
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise ConfigUnusable("this is no safetensors file: its first eight bytes are no length of a header")
    return length


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    first, end = entry["data_offsets"]
    elements = 1
    for size in entry["shape"]:
        elements *= size
    return Tensor(entry["dtype"], elements, end - first)


def of_tensors(tensors: Iterable[Tensor], element_bytes: int) -> Weights:
    """Floats are kept in the run's number format; what is packed or smaller stays as it is."""
    total = sum(tensor.elements * element_bytes if tensor.dtype in _FLOATS else tensor.size_bytes for tensor in tensors)
    return Weights(total, Source.TENSORS)


def of_index(index: Mapping[str, Any], shape: ModelShape, element_bytes: int) -> Weights | None:
    """From a model.safetensors.index.json, which has the sum alone; None for the few that lack even that."""
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if not isinstance(total, int | float) or not 1 <= total <= _MOST_BYTES:
        return None
    if shape.weight_bits is None:
        return Weights(int(total) * element_bytes // ELEMENT_BYTES.get(shape.dtype or "", 2), Source.INDEX)
    return Weights(int(total), Source.INDEX)


def of_config(shape: ModelShape, element_bytes: int) -> Weights:
    """From sizes alone; quantised models keep embedding and head as they were."""
    bits = 8 * element_bytes if shape.weight_bits is None else shape.weight_bits
    return Weights(_bytes_at(bits, shape, element_bytes), Source.CONFIG)


def quantised_on_load(whole: Weights, shape: ModelShape, method: str, element_bytes: int) -> Weights:
    """Of a model that the engine quantises as it loads it, by the method's name; one that is not known, as it is."""
    bits = next((bits for part, bits in _BITS_BY_NAME if part in method), None)
    if bits is None or shape.weight_bits is not None:
        return whole
    return Weights(min(_bytes_at(bits, shape, element_bytes), whole.total_bytes), whole.source)


def _bytes_at(bits: int, shape: ModelShape, element_bytes: int) -> int:
    """With so many bits a number in the layers."""
    parameters = shape.parameters
    groups = parameters.layers / _GROUP * _GROUP_BYTES if bits <= _GROUPED_BITS else 0.0
    return (parameters.embedding + parameters.head) * element_bytes + int(parameters.layers * bits / 8 + groups)
