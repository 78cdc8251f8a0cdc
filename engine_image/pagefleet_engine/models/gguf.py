"""Reads GGUF files: metadata, and tensors as float32 arrays.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (layout, versions 2 and 3).
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pagefleet_engine.models import gguf_formats
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT_BYTES = 32
_STRING, _ARRAY = 8, 9
_LENGTH_BYTES = 8
"""What each string has before its text."""
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """Where a metadata array lies; its items are read when asked for."""

    item_type: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's shape (rows first, as numpy and torch write it), format and place in the file."""

    shape: tuple[int, ...]
    format: gguf_formats.BlockFormat
    offset: int
    size_bytes: int


class _Cursor:
    """Reads forward through the file and never past its end."""

    def __init__(self, path: Path, data: memoryview, offset: int = 0) -> None:
        self.path, self.data, self.offset = path, data, offset

    def take(self, size_bytes: int, what: str) -> int:
        """Move on by `size_bytes`; gives the offset before."""
        start = self.offset
        if size_bytes > len(self.data) - start:
            raise ModelBroken(
                f"{self.path} is truncated or damaged: {what} at byte {start} needs {size_bytes} bytes, "
                f"the file has {len(self.data)}"
            )
        self.offset = start + size_bytes
        return start

    def unpack(self, layout: str, what: str) -> tuple[Any, ...]:
        return struct.unpack_from(layout, self.data, self.take(struct.calcsize(layout), what))

    def text(self, what: str) -> str:
        (size_bytes,) = self.unpack("<Q", what)
        start = self.take(size_bytes, what)
        try:
            return str(self.data[start : start + size_bytes], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelBroken(f"{self.path}: {what} at byte {start} is not UTF-8") from error

    def scalar(self, kind: int, what: str) -> Scalar:
        if kind == _STRING:
            return self.text(what)
        if kind not in _SCALARS:
            raise ModelBroken(f"{self.path}: {what} has the unknown value type {kind}")
        value: Scalar = self.unpack("<" + _SCALARS[kind], what)[0]
        return value

    def array(self, what: str) -> ArrayInfo:
        item_type, count = self.unpack("<IQ", what)
        info = ArrayInfo(item_type, count, self.offset)
        if item_type in _SCALARS:
            self.take(count * struct.calcsize(_SCALARS[item_type]), what)
        elif item_type == _STRING:
            _Cursor(self.path, self.data, self.offset).take(count * _LENGTH_BYTES, what)
            for _ in range(count):
                self.take(self.unpack("<Q", what)[0], what)
        else:
            raise ModelBroken(f"{self.path}: {what} is an array of the unknown value type {item_type}")
        return info


class Gguf:
    """An open GGUF file. `metadata` holds the single values, `arrays` says where the lists are."""

    def __init__(self, path: Path) -> None:
        """Read the header. Raises ModelBroken (not GGUF, truncated) or ModelUnsupported (tensor type)."""
        self.path = path
        self._data = _map(path)
        self.metadata: dict[str, Scalar] = {}
        self.arrays: dict[str, ArrayInfo] = {}
        self.tensors: dict[str, TensorInfo] = {}
        cursor = _Cursor(path, self._data)
        tensor_count = self._read_metadata(cursor)
        self._read_tensors(cursor, tensor_count)

    def array(self, key: str) -> list[Any]:
        """The items of a metadata array. Raises KeyError when there is none."""
        info = self.arrays[key]
        cursor = _Cursor(self.path, self._data, info.offset)
        if info.item_type == _STRING:
            return [cursor.text(key) for _ in range(info.count)]
        return list(cursor.unpack(f"<{info.count}{_SCALARS[info.item_type]}", key))

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor's values, float32, shape as in `tensors`. Raises KeyError when there is none."""
        info = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, info.size_bytes, info.offset)
        return info.format.decode(raw.reshape(-1, info.format.block_bytes)).reshape(info.shape)

    def _read_metadata(self, cursor: _Cursor) -> int:
        start = cursor.take(len(MAGIC), "the magic number")
        if self._data[start : start + len(MAGIC)] != MAGIC:
            raise ModelBroken(
                f"{self.path} is not a GGUF file: it does not start with {MAGIC!r}; "
                "give a whole .gguf file or a model folder"
            )
        version, tensor_count, pair_count = cursor.unpack("<IQQ", "the header")
        if version not in VERSIONS:
            raise ModelUnsupported(f"{self.path}: GGUF version {version}; supported are {VERSIONS}")
        for _ in range(pair_count):
            key = cursor.text("a metadata key")
            (kind,) = cursor.unpack("<I", key)
            if kind == _ARRAY:
                self.arrays[key] = cursor.array(key)
            else:
                self.metadata[key] = cursor.scalar(kind, key)
        return int(tensor_count)

    def _read_tensors(self, cursor: _Cursor, tensor_count: int) -> None:
        listed = [self._read_tensor(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelBroken(f"{self.path}: general.alignment is {alignment!r}, not a number of bytes")
        base = -(-cursor.offset // alignment) * alignment
        for name, shape, form, offset in listed:
            size_bytes = form.size_bytes(shape)
            if size_bytes is None:
                raise ModelBroken(f"{self.path}: tensor {name} of shape {shape} is no whole {form.name} blocks")
            _Cursor(self.path, self._data, base + offset).take(size_bytes, f"tensor {name}")
            if name in self.tensors:
                raise ModelBroken(f"{self.path}: tensor {name} is listed twice")
            self.tensors[name] = TensorInfo(shape, form, base + offset, size_bytes)

    def _read_tensor(self, cursor: _Cursor) -> tuple[str, tuple[int, ...], gguf_formats.BlockFormat, int]:
        name = cursor.text("a tensor name")
        (dimensions,) = cursor.unpack("<I", name)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelBroken(f"{self.path}: tensor {name} has {dimensions} dimensions")
        shape = cursor.unpack(f"<{dimensions}Q", name)[::-1]
        kind, offset = cursor.unpack("<IQ", name)
        form = gguf_formats.FORMATS.get(kind)
        if form is None:
            known = gguf_formats.UNSUPPORTED_NAMES.get(kind, "unknown")
            supported = ", ".join(entry.name for entry in gguf_formats.FORMATS.values())
            raise ModelUnsupported(
                f"{self.path}: tensor {name} has type {kind} ({known}); supported are {supported}. "
                "Use a file quantised to one of these, or the model's safetensors folder"
            )
        return name, shape, form, offset


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{path} cannot be read: {error}") from error
