"""Small models as they are published: real safetensors files, and what lies beside them."""

import hashlib
import json
import struct
from pathlib import Path
from typing import NamedTuple


def safetensors(size_bytes: int, fill: int = 7) -> bytes:
    """A whole safetensors file with one tensor of that size."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * size_bytes


SHARDS = {f"model-0000{number}-of-00002.safetensors": safetensors(300_000, number) for number in (1, 2)}
INDEX = json.dumps({"weight_map": {f"layer.{name}": name for name in SHARDS}}).encode()
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors.index.json": INDEX,
    **SHARDS,
}
"""What an engine needs."""
REPOSITORY = {
    **MODEL,
    "README.md": b"# A model",
    ".gitattributes": b"*.safetensors filter=lfs",
    "pytorch_model.bin": b"the same weights once more",
    "consolidated.safetensors": safetensors(10),
    "onnx/model.onnx": b"and again",
    "original/params.json": b"{}",
}
"""All that its author published."""


class Known(NamedTuple):
    """A file as a hub describes it."""

    size: int
    blob_id: str
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "Known":
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        return cls(len(content), blob, hashlib.sha256(content).hexdigest())


def contents(folder: Path) -> dict[str, bytes]:
    """Every visible file of a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
