"""Writes GGUF files for tests, by the format's definition and with none of the reader's code."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32
Tensor = tuple[tuple[int, ...], int, bytes]
"""Shape with rows first, type number, bytes."""


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(item: Any) -> bytes:
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + text(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        case _:
            return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], version: int = 3) -> bytes:
    header = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    header += b"".join(text(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        header += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        header += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % ALIGNMENT)
    return header + bytes(-len(header) % ALIGNMENT) + data


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def f32(values: "np.ndarray[Any, Any]") -> Tensor:
    return values.shape, 0, values.astype("<f4").tobytes()


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 8,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.bos_token_id": 256,
    "tokenizer.ggml.eos_token_id": 257,
}


def byte_tokens() -> list[str]:
    """The 256 byte tokens of byte-level BPE in the order of their bytes (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """A whole small model's metadata with a byte-level tokenizer; `None` takes a key out."""
    tokens = [*byte_tokens(), "<s>", "<|im_end|>", "th", "the", "\u0120the", "user<>"]
    types = [1] * 256 + [3, 3, 1, 1, 1, 4]
    lists = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["t h", "th e", "\u0120 the"],
        "tokenizer.chat_template": "{{ messages }}",
    }
    dotted = {key.replace("__", "."): item for key, item in changes.items()}
    return {key: item for key, item in (LLAMA | lists | dotted).items() if item is not None}


def llama_tensors(seed: int = 0) -> dict[str, Tensor]:
    """Random weights for `llama_metadata`, tied head."""
    random = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (262, 32), "output_norm.weight": (32,)}
    layer = {
        "attn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
        "ffn_norm": (32,), "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64),
    }  # fmt: skip
    for index in range(2):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return {name: f32(random.standard_normal(shape)) for name, shape in shapes.items()}
