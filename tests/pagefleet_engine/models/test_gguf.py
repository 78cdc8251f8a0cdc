"""Reading GGUF files, whole and damaged."""

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.models import gguf_formats
from pagefleet_engine.models.errors import ModelBroken, ModelError, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf
from tests.pagefleet_engine.models import gguf_files

Blocks = st.lists(
    st.tuples(
        st.floats(-1000, 1000, width=16),
        st.floats(-1000, 1000, width=16),
        st.lists(st.integers(0, 15), min_size=32, max_size=32),
        st.lists(st.integers(-128, 127), min_size=32, max_size=32),
    ),
    min_size=1,
    max_size=4,
)


def half(number: float) -> bytes:
    return struct.pack("<e", number)


def packed(nibbles: list[int]) -> bytes:
    return bytes(low | high << 4 for low, high in zip(nibbles[:16], nibbles[16:], strict=True))


def read_back(tmp: Path, kind: int, count: int, raw: bytes) -> "np.ndarray[Any, Any]":
    path = gguf_files.write(tmp / "tensor.gguf", {}, {"x": ((count, 32), kind, raw)})
    return Gguf(path).tensor("x")


@pytest.fixture(scope="module")
def tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@given(blocks=Blocks)
def test_q4_0_blocks_are_scale_times_nibble_less_eight(tmp: Path, blocks: list[Any]) -> None:
    raw = b"".join(half(scale) + packed(nibbles) for scale, _, nibbles, _ in blocks)
    expected = [[np.float32(scale) * (n - 8) for n in nibbles] for scale, _, nibbles, _ in blocks]
    np.testing.assert_array_equal(read_back(tmp, 2, len(blocks), raw), np.array(expected, np.float32))


@given(blocks=Blocks)
def test_q4_1_blocks_are_scale_times_nibble_plus_minimum(tmp: Path, blocks: list[Any]) -> None:
    raw = b"".join(half(scale) + half(low) + packed(nibbles) for scale, low, nibbles, _ in blocks)
    expected = [
        [np.float32(np.float32(scale) * n) + np.float32(low) for n in nibbles] for scale, low, nibbles, _ in blocks
    ]
    np.testing.assert_array_equal(read_back(tmp, 3, len(blocks), raw), np.array(expected, np.float32))


@given(blocks=Blocks)
def test_q8_0_blocks_are_scale_times_signed_byte(tmp: Path, blocks: list[Any]) -> None:
    raw = b"".join(half(scale) + struct.pack("32b", *numbers) for scale, _, _, numbers in blocks)
    expected = [[np.float32(scale) * n for n in numbers] for scale, _, _, numbers in blocks]
    np.testing.assert_array_equal(read_back(tmp, 8, len(blocks), raw), np.array(expected, np.float32))


@given(numbers=st.lists(st.floats(-60000, 60000, width=16), min_size=32, max_size=32))
def test_f16_and_f32_keep_their_values(tmp: Path, numbers: list[float]) -> None:
    for kind, layout in ((1, "<32e"), (0, "<32f")):
        np.testing.assert_array_equal(read_back(tmp, kind, 1, struct.pack(layout, *numbers))[0], numbers)


def test_golden_blocks() -> None:
    nibbles = bytes.fromhex("10325476 98badcfe 10325476 98badcfe".replace(" ", ""))
    q4_0 = gguf_formats.FORMATS[2].decode(np.frombuffer(bytes.fromhex("0038") + nibbles, np.uint8)[None])
    assert q4_0[0, :4].tolist() == [-4.0, -3.0, -2.0, -1.0]
    assert q4_0[0, 16:20].tolist() == [-3.5, -2.5, -1.5, -0.5]
    q4_1 = gguf_formats.FORMATS[3].decode(np.frombuffer(bytes.fromhex("003800c0") + nibbles, np.uint8)[None])
    assert q4_1[0, :4].tolist() == [-2.0, -1.0, 0.0, 1.0]
    assert q4_1[0, 16:20].tolist() == [-1.5, -0.5, 0.5, 1.5]


def test_metadata_lists_and_tensors_are_read(tmp: Path) -> None:
    metadata = {"a": 7, "b": 0.5, "c": "text é", "d": True, "e": ["x", "yy"], "f": [1, -2, 3]}
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = gguf_files.write(tmp / "whole.gguf", metadata, {"t": gguf_files.f32(rows), "u": gguf_files.f32(rows + 1)})
    gguf = Gguf(path)
    assert gguf.metadata == {"a": 7, "b": 0.5, "c": "text é", "d": True}
    assert (gguf.array("e"), gguf.array("f")) == (["x", "yy"], [1, -2, 3])
    assert gguf.tensors["t"].shape == (2, 3)
    np.testing.assert_array_equal(gguf.tensor("u"), rows + 1)


def test_an_unsupported_tensor_type_is_named(tmp: Path) -> None:
    for kind, name in ((14, "Q6_K"), (999, "unknown")):
        path = gguf_files.write(tmp / "type.gguf", {}, {"blk.0.x": ((1, 256), kind, bytes(210))})
        with pytest.raises(ModelUnsupported, match=rf"type.gguf: tensor blk.0.x has type {kind} \({name}\)"):
            Gguf(path)


BROKEN = {
    "empty": (b"", "cannot be read"),
    "not GGUF": (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
    "huge count": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "truncated or damaged"),
    "huge string": (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 62), "truncated or damaged"),
    "not UTF-8": (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2) + b"\xff\xfe" + bytes(20), "is not UTF-8"),
    "value type": (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"k" + bytes([77, 0, 0, 0]), "unknown value type 77"),
    "list type": (
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1),
        "array of the unknown value type 9",
    ),
    "strings without end": (
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 100) + bytes(400),
        "needs 800 bytes",
    ),
    "part of a block": (gguf_files.gguf_bytes({}, {"x": ((1, 33), 2, bytes(40))}), "no whole Q4_0 blocks"),
    "no rows": (gguf_files.gguf_bytes({}, {"x": ((0, 32), 2, bytes(40))}), "no whole Q4_0 blocks"),
    "alignment": (gguf_files.gguf_bytes({"general.alignment": 0}, {}), "general.alignment is 0"),
    "dimensions": (gguf_files.gguf_bytes({}, {"x": ((1, 1, 1, 1, 1), 0, bytes(4))}), "has 5 dimensions"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_file_is_refused_with_its_name_and_what_is_wrong(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelBroken, match=message) as error:
        Gguf(path)
    assert "model.gguf" in str(error.value)


def test_an_old_version_a_missing_file_and_a_tensor_listed_twice_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelBroken, match="cannot be read"):
        Gguf(path)
    path.write_bytes(gguf_files.gguf_bytes({}, {}, version=1))
    with pytest.raises(ModelUnsupported, match="GGUF version 1"):
        Gguf(path)
    twice = gguf_files.gguf_bytes({}, {"aa": ((1,), 0, bytes(4)), "ab": ((1,), 0, bytes(4))})
    path.write_bytes(twice.replace(b"ab", b"aa"))
    with pytest.raises(ModelBroken, match="aa is listed twice"):
        Gguf(path)


def test_a_file_cut_anywhere_or_with_any_byte_changed_gives_a_model_error_or_a_model(tmp_path: Path) -> None:
    whole = gguf_files.gguf_bytes(gguf_files.llama_metadata(), gguf_files.llama_tensors())
    choice = random.Random(1)
    path = tmp_path / "cut.gguf"
    for size in [*range(200), *(choice.randrange(len(whole) - 1) for _ in range(150))]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            Gguf(path)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[choice.randrange(8000)] = choice.randrange(256)
        path.write_bytes(damaged)
        try:
            gguf = Gguf(path)
        except ModelError:
            continue
        for key in gguf.arrays:
            try:
                gguf.array(key)
            except ModelError:
                continue
