"""Model configurations from config.json and from GGUF."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pagefleet_engine.models.config import ModelConfig, uniform_attention
from pagefleet_engine.models.config_fields import Fields, read_json
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.config_gguf import from_gguf
from pagefleet_engine.models.config_json import from_json
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.rope import DividedFrequencies, LinearScaling, Llama3Scaling, Rope
from pagefleet_engine.models.source import GgufModel, resolve
from tests.pagefleet_engine.models import gguf_files
from tests.pagefleet_engine.tiny_model import write_tiny_model

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 266,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPECTED = ModelConfig(
    layers=2, hidden_size=64, intermediate_size=96, heads=4, kv_heads=2, head_size=16, vocab_size=266,
    max_positions=512, norm_eps=1e-5, ropes=(Rope(10000.0, 16),), attention=uniform_attention(2), query_scale=0.25,
    tied_head=False, bos_id=1, eos_ids=(2,),
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "generation", "differences"),
    [
        ({}, {}, {}),
        ({"num_key_value_heads": None}, {}, {"kv_heads": 4}),
        ({"head_dim": 32}, {}, {"head_size": 32, "ropes": (Rope(10000.0, 32),), "query_scale": 32**-0.5}),
        ({"tie_word_embeddings": True}, {}, {"tied_head": True}),
        ({"rope_theta": 5e5}, {}, {"ropes": (Rope(5e5, 16),)}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}, {"ropes": (Rope(5e5, 16),)}),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, {}, {"ropes": (Rope(1e4, 16, LinearScaling(4.0)),)}),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            {},
            {"ropes": (Rope(5e5, 16, Llama3Scaling(8.0, 1.0, 4.0, 8192)),)},
        ),
        ({"rope_parameters": LLAMA3}, {}, {"ropes": (Rope(1e4, 16, Llama3Scaling(8.0, 1.0, 4.0, 8192)),)}),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": [8, 9]}, {"eos_ids": (8, 9, 7)}),
        ({"eos_token_id": None, "bos_token_id": None}, {}, {"eos_ids": (), "bos_id": None}),
        ({"torch_dtype": "bfloat16"}, {}, {"weights_dtype": "bfloat16"}),
        ({"dtype": "float16"}, {}, {"weights_dtype": "float16"}),
        ({"quantization_config": None, "attention_bias": False}, {}, {}),
    ],
)
def test_config_json(changes: dict[str, Any], generation: dict[str, Any], differences: dict[str, Any]) -> None:
    config = from_json("config.json", PLAIN | changes, generation)
    assert config == dataclasses.replace(EXPECTED, **differences)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "config.json: model_type is None; this engine runs gemma, gemma2"),
        ({"attention_bias": True}, "attention_bias is True; this engine runs only False"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this engine runs only 'silu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}; use the model's unquantised"),
        ({"hidden_size": "64"}, "hidden_size is '64'; a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; a number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; a token id or a list"),
        ({"eos_token_id": [2, 2**63]}, "eos_token_id is [2, 9223372036854775808]; a token id or a list"),
        ({"eos_token_id": [-1]}, "eos_token_id is [-1]"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"head_dim": 15}, "it is 15"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "rope_scaling: rope_type is 'dynamic'"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; an object"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.2}},
            "partial_rotary_factor is 0.2; this engine runs only 1 or 1.0",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is absent"),
    ],
)
def test_what_this_engine_does_not_run_is_refused_by_field_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupported) as error:
        from_json("config.json", PLAIN | changes, {})
    assert message in str(error.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelUnsupported, match="vocab_size is absent"):
        from_json("config.json", {key: item for key, item in PLAIN.items() if key != "vocab_size"}, {})


def test_a_folder_is_read_with_its_generation_config(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    config = read_config(resolve(f"file://{folder}"))
    assert (config.layers, config.eos_ids, config.tied_head) == (2, (263, 265), False)
    (folder / "generation_config.json").unlink()
    assert read_config(resolve(f"file://{folder}")).eos_ids == (263,)


def test_files_that_are_no_json_object_are_broken(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content in (b"{", b"[]", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(ModelBroken, match=str(path)):
            read_json(path)


@pytest.mark.parametrize("number", [10**400, math.inf, math.nan, 0, True, "1"])
def test_what_positions_are_divided_by_is_a_finite_number_above_0(number: Any) -> None:
    with pytest.raises(ModelUnsupported, match=r"long_factor is .*; a list of 2 numbers above 0 is needed"):
        Fields("config.json", {"long_factor": [1.5, number]}).numbers("long_factor", 2)


def test_as_many_added_tokens_as_a_model_of_pictures_has_are_read(tmp_path: Path) -> None:
    path, tokens, bytes_each = tmp_path / "tokenizer_config.json", 131_072, 190
    path.write_text("{" + " " * (tokens * bytes_each) + "}")
    assert read_json(path) == {}


def test_a_file_that_cannot_be_read_is_not_called_broken_json(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=r"config\.json cannot be read: No such file"):
        read_json(tmp_path / "config.json")


def gguf(tmp_path: Path, tensors: dict[str, gguf_files.Tensor] | None = None, **changes: Any) -> Gguf:
    return Gguf(gguf_files.write(tmp_path / "m.gguf", gguf_files.llama_metadata(**changes), tensors or {}))


def test_gguf_metadata(tmp_path: Path) -> None:
    config = from_gguf(gguf(tmp_path))
    expected = ModelConfig(
        layers=2, hidden_size=32, intermediate_size=64, heads=4, kv_heads=2, head_size=8, vocab_size=262,
        max_positions=256, norm_eps=float(np.float32(1e-5)), ropes=(Rope(10000.0, 8),),
        attention=uniform_attention(2), query_scale=8**-0.5, tied_head=True, bos_id=256, eos_ids=(257,),
    )  # fmt: skip
    assert config == expected
    path = tmp_path / "m.gguf"
    assert read_config(GgufModel("file://m", path)) == expected


def test_gguf_scaling_head_and_further_stop_tokens(tmp_path: Path) -> None:
    linear: dict[str, Any] = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    assert from_gguf(gguf(tmp_path, **linear)).ropes[0].scaling == LinearScaling(2.0)
    assert from_gguf(gguf(tmp_path, None, **{"llama.rope.scaling.type": "none"})).ropes[0].scaling is None
    eot = {"tokenizer.ggml.eot_token_id": 9}
    tensors = {
        "rope_freqs.weight": gguf_files.f32(np.array([1.0, 2.0, 4.0, 8.0])),
        "output.weight": gguf_files.f32(np.zeros((262, 32))),
    }
    config = from_gguf(gguf(tmp_path, tensors, **eot))
    assert config.ropes[0].scaling == DividedFrequencies((1.0, 2.0, 4.0, 8.0))
    assert (config.tied_head, config.eos_ids) == (False, (257, 9))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "qwen2"}, "general.architecture is 'qwen2'; this engine runs 'llama'"),
        ({"llama.expert_count": 8}, "llama.expert_count is 8"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count is 4; this engine runs only 8"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'"),
        ({"llama.block_count": None}, "llama.block_count is absent"),
        ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens is absent"),
    ],
)
def test_gguf_files_of_other_models_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupported) as error:
        from_gguf(gguf(tmp_path, **changes))
    assert message in str(error.value)
