import json

import pytest

from pagefleet_api.sizing import weights
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_api.sizing.fit import Demand
from pagefleet_api.sizing.model import read_shape
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_api.sizing.configs import Config

LLAMA = read_shape(configs.LLAMA_8B)


def header(**tensors: tuple[str, list[int], int]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    return json.dumps(entries).encode()


def test_floats_take_the_format_that_they_run_in_and_packed_numbers_their_own() -> None:
    tensors = weights.read_header(
        header(embed=("F32", [10, 4], 160), qweight=("I32", [8, 8], 256), norm=("BF16", [], 2), w=("F8_E4M3", [9], 9))
    )
    assert weights.of_tensors(tensors, 2) == (80 + 256 + 2 + 9, weights.Source.TENSORS)
    assert weights.of_tensors(tensors, 4).total_bytes == 160 + 256 + 4 + 9


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"a": {"dtype": "F32"}}', b'{"a": {"data_offsets": 3}}', b"\xff"])
def test_what_is_no_header_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigUnusable, match="no header"):
        weights.read_header(text)


@pytest.mark.parametrize("start", [b"", b"\0" * 8, b"\xff" * 8, b"GGUF"])
def test_what_is_no_safetensors_file_is_refused(start: bytes) -> None:
    with pytest.raises(ConfigUnusable, match="no safetensors file"):
        weights.header_length(start)
    assert weights.header_length(b"\x10" + b"\0" * 7) == 16


def test_an_index_has_the_sum_and_it_follows_the_format() -> None:
    index = {"metadata": {"total_size": 16_060_522_496}}
    assert weights.of_index(index, LLAMA, 2) == (16_060_522_496, weights.Source.INDEX)
    assert weights.of_index(index, LLAMA, 4) == (2 * 16_060_522_496, weights.Source.INDEX)
    packed = read_shape(configs.LLAMA_8B | {"quantization_config": {"quant_method": "awq", "bits": 4}})
    assert weights.of_index({"metadata": {"total_size": 5_700_000_000}}, packed, 2) == (5_700_000_000, "index")


@pytest.mark.parametrize("index", [{}, {"metadata": None}, {"metadata": {"total_size": "much"}}, {"metadata": "x"}])
def test_an_index_without_a_sum_leaves_it_to_the_config(index: Config) -> None:
    assert weights.of_index(index, LLAMA, 2) is None
    assert ModelFacts.read(configs.LLAMA_8B, index=index).stored(2) == (16_060_522_496, weights.Source.CONFIG)


@pytest.mark.parametrize(
    ("quantisation", "gigabytes"),
    [
        pytest.param(None, 16.06, id="bfloat16"),
        pytest.param({"quant_method": "fp8"}, 9.08, id="fp8"),
        pytest.param({"quant_method": "gptq", "bits": 4}, 5.73, id="4 bit, published as 5.73 GB"),
    ],
)
def test_without_files_the_sizes_tell(quantisation: Config | None, gigabytes: float) -> None:
    shape = read_shape(configs.LLAMA_8B | ({} if quantisation is None else {"quantization_config": quantisation}))
    found = weights.of_config(shape, 2)
    assert found.source is weights.Source.CONFIG
    assert found.total_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("method", "gigabytes"),
    [("fp8", 9.08), ("w8a8_int8", 9.08), ("bitsandbytes", 5.73), ("int4wo-128", 5.73), ("new", 16.06), (None, 16.06)],
)
def test_an_engine_may_quantise_what_it_loads(method: str | None, gigabytes: float) -> None:
    facts = ModelFacts.read(configs.LLAMA_8B)
    assert facts.weights(Demand(quantisation=method)).total_bytes == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_what_is_quantised_already_is_loaded_as_it_is() -> None:
    facts = ModelFacts.read(
        configs.LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}}, index={"metadata": {"total_size": 9_000}}
    )
    assert facts.weights(Demand(quantisation="fp8")).total_bytes == 9_000
