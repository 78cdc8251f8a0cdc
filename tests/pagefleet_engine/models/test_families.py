"""What each family's config.json says, in the words of transformers 5 and in older ones."""

import math
from typing import Any

import pytest

from pagefleet_engine.models.config import Experts, LayerAttention, ModelConfig
from pagefleet_engine.models.config_json import from_json
from pagefleet_engine.models.errors import ModelUnsupported
from pagefleet_engine.models.rope import LinearScaling, LongScaling, Rope, YarnScaling
from pagefleet_engine.models.tensor_names import expected_shapes
from tests.pagefleet_engine.models.test_config import EXPECTED, PLAIN

FULL, WINDOWED, UNTURNED = LayerAttention(), LayerAttention(9), LayerAttention(None, None)
SLIDING, WHOLE = "sliding_attention", "full_attention"
GEMMA = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64}
GELU = {"activation": "gelu_tanh", "norm_unit_offset": True, "embedding_scale": 8.0, "tied_head": True}
GEMMA2 = GELU | {"norm_placement": "sandwich", "query_scale": 0.125}
GEMMA3 = GEMMA2 | {"head_norm": "head", "attention": (LayerAttention(9, 1), FULL)}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LISTS = {"short_factor": [1.0] * 6, "long_factor": [2] * 6}
LONG = LongScaling((1.0,) * 6, (2.0,) * 6, 64, math.sqrt(1 + math.log(8) / math.log(64)))
YARN = {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("mistral", {"sliding_window": None}, {}),
    ("mistral", {"sliding_window": 9}, {"attention": (WINDOWED,) * 2}),
    ("qwen2", {"sliding_window": 9, "use_sliding_window": False, "max_window_layers": 0}, {"qkv_bias": True}),
    (
        "qwen2",
        {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1},
        {"qkv_bias": True, "attention": (FULL, WINDOWED)},
    ),
    ("qwen3", {"head_dim": 16}, {"head_norm": "head"}),
    ("qwen3", {"layer_types": [WHOLE, WHOLE]}, {"head_norm": "head"}),
    ("gemma", GEMMA, GELU),
    ("gemma", {"hidden_act": "gelu"}, GELU),
    ("gemma2", GEMMA | {"sliding_window": 9}, GEMMA2 | {"attention": (WINDOWED, FULL)}),
    (
        "gemma2",
        GEMMA | {"sliding_window": 9, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        GEMMA2 | {"attention": (WINDOWED, FULL), "attention_soft_cap": 50.0, "logit_soft_cap": 30.0},
    ),
    (
        "gemma3_text",
        GEMMA | {"sliding_window": 9, "sliding_window_pattern": 2, "rope_local_base_freq": 500, "rope_theta": 7e5},
        GEMMA3 | {"ropes": (Rope(7e5, 16), Rope(500.0, 16))},
    ),
    (
        "gemma3_text",
        GEMMA | {
            "sliding_window": 9, "layer_types": [SLIDING, WHOLE],
            "rope_parameters": {WHOLE: {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
                                SLIDING: {"rope_theta": 10000.0}},
        },
        GEMMA3 | {"ropes": (Rope(1e6, 16, LinearScaling(8.0)), Rope(1e4, 16))},
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "su"} | LISTS, "original_max_position_embeddings": 64,
         "partial_rotary_factor": 0.75},
        {"ropes": (Rope(1e4, 12, LONG),)},
    ),
    (
        "phi3",
        {"rope_parameters": {"rope_type": "longrope", "partial_rotary_factor": 0.75, "rope_theta": 1e4,
                             "original_max_position_embeddings": 64} | LISTS},
        {"ropes": (Rope(1e4, 12, LONG),)},
    ),
    ("qwen3", {"rope_scaling": YARN}, {
        "head_norm": "head",
        "ropes": (Rope(1e4, 16, YarnScaling(4.0, 128, 32.0, 1.0, True, 0.1 * math.log(4) + 1)),),
    }),
    ("smollm3", {"no_rope_layers": [1, 0]}, {"attention": (FULL, UNTURNED), "tied_head": True}),
    ("smollm3", {"no_rope_layer_interval": 2}, {"attention": (FULL, UNTURNED), "tied_head": True}),
    (
        "smollm3",
        {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 9, "tie_word_embeddings": False},
        {"attention": (FULL, LayerAttention(9, None))},
    ),
    (
        "granite",
        {"embedding_multiplier": 12, "attention_multiplier": 0.5, "residual_multiplier": 0.25, "logits_scaling": 8},
        {"embedding_scale": 12.0, "query_scale": 0.5, "residual_scale": 0.25, "logit_scale": 0.125},
    ),
    ("olmo2", {}, {"norm_placement": "post", "head_norm": "all"}),
    ("mixtral", {"num_local_experts": 8} | EXPERTS, {"experts": Experts(8, 2, 96, renormalise=True)}),
    (
        "qwen3_moe",
        {"num_experts": 8, "norm_topk_prob": True, "mlp_only_layers": [1]} | EXPERTS,
        {"head_norm": "head", "experts": Experts(8, 2, 24, renormalise=True, dense_layers=frozenset({1}))},
    ),
    (
        "qwen3_moe",
        {"num_local_experts": 8, "decoder_sparse_step": 2} | EXPERTS,
        {"head_norm": "head", "experts": Experts(8, 2, 24, renormalise=False, dense_layers=frozenset({0}))},
    ),
    ("olmoe", {"num_experts": 8} | EXPERTS, {"head_norm": "all", "experts": Experts(8, 2, 96, renormalise=False)}),
]  # fmt: skip


def read(model_type: str, changes: dict[str, Any]) -> ModelConfig:
    """The configuration of the plain config.json with changes."""
    return from_json("config.json", PLAIN | {"model_type": model_type} | changes, {})


@pytest.mark.parametrize(("model_type", "changes", "differences"), CASES)
def test_a_family_differs_from_llama(model_type: str, changes: dict[str, Any], differences: dict[str, Any]) -> None:
    config = read(model_type, changes)
    told = {name: getattr(config, name) for name in ModelConfig.__slots__}
    plain = {name: getattr(EXPECTED, name) for name in ModelConfig.__slots__}
    assert told == plain | {"architecture": model_type} | differences


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("qwen3", {"attention_bias": True}, "attention_bias is True"),
        ("gemma2", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("gemma3_text", GEMMA | {"use_bidirectional_attention": True, "sliding_window": 9}, "use_bidirectional"),
        ("gemma2", GEMMA, "sliding_window is absent; layers slide"),
        ("gemma2", GEMMA | {"layer_types": [WHOLE]}, "layer_types is"),
        ("gemma2", GEMMA | {"layer_types": [WHOLE, "chunked_attention"]}, "layer_types is"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers is [1]; a list of 2"),
        ("olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0"),
        ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}}, "short_factor is"),
        (
            "phi3",
            {"rope_scaling": {"type": "longrope"} | LISTS, "original_max_position_embeddings": 1},
            "original_max_position_embeddings is 1; lengths",
        ),
        ("phi3", {"rope_scaling": {"type": ["yarn"]}}, "rope_type is ['yarn']; this engine runs default"),
        ("phi3", {"partial_rotary_factor": 0.2}, "even number of at most the 16 elements"),
        ("qwen3", {"rope_scaling": YARN | {"truncate": 1}}, "truncate is 1"),
        ("deepseek_v3", {"kv_lora_rank": 512}, "kv_lora_rank is 512; latent attention (MLA)"),
        ("jamba", {"mamba_d_state": 16}, "layers with a state of their own"),
        ("mamba", {}, "layers with a state of their own"),
        ("t5", {"is_encoder_decoder": True}, "decoders alone"),
        ("gemma3", {"vision_config": {"hidden_size": 1}}, "vision_config is there; this engine serves models of text"),
        ("strange", {"num_hidden_layers": 2**62}, f"num_hidden_layers is {2**62}; 10000 layers are the most"),
        ("strange", {"model_type": ["llama"]}, "model_type is ['llama']; this engine runs "),
        ("strange", {"num_attention_heads": None}, "num_attention_heads is None"),
    ],
)
def test_what_a_family_may_say_but_is_not_run(model_type: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnsupported) as error:
        read(model_type, changes)
    assert message in str(error.value)


@pytest.mark.parametrize("changes", [{}, {"head_dim": None}, {"intermediate_size": None}])
def test_any_other_model_is_left_to_transformers_with_its_sizes(changes: dict[str, Any]) -> None:
    config = read("gpt_neox", changes)
    assert (config.foreign, config.architecture, config.layers, config.vocab_size) == (True, "gpt_neox", 2, 266)


def test_other_names_of_sizes_are_understood() -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 128, "vocab_size": 9}
    config = from_json("config.json", gpt2 | {"eos_token_id": 5}, {})
    assert (config.layers, config.heads, config.kv_heads, config.head_size) == (2, 4, 4, 16)
    assert (config.max_positions, config.hidden_size, config.eos_ids) == (128, 64, (5,))


def test_tensors_are_called_as_the_family_does() -> None:
    def names(model_type: str, **changes: Any) -> dict[str, tuple[int, ...]]:
        shapes = expected_shapes(read(model_type, changes))
        return {name.removeprefix("model.layers.1."): shape for name, shape in shapes.items() if "layers.1" in name}

    assert names("phi3")["self_attn.qkv_proj.weight"] == (128, 64)
    assert names("phi3")["mlp.gate_up_proj.weight"] == (192, 64)
    assert names("qwen2")["self_attn.k_proj.bias"] == (32,)
    assert names("olmo2")["self_attn.q_norm.weight"] == (64,)
    assert "input_layernorm.weight" not in names("olmo2")
    mixtral = names("mixtral", num_local_experts=3, num_experts_per_tok=1)
    assert mixtral["block_sparse_moe.experts.2.w2.weight"] == (64, 96)
    assert mixtral["block_sparse_moe.gate.weight"] == (3, 64)
    dense = names("qwen3_moe", num_experts=3, mlp_only_layers=[1], **EXPERTS)
    assert dense["mlp.gate_proj.weight"] == (96, 64)
