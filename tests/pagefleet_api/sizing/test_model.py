import pytest

from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_api.sizing.model import KvLayers, read_shape
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_api.sizing.configs import Config


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        pytest.param(configs.LLAMA_8B, 131_072, id="grouped heads"),
        pytest.param(configs.LLAMA_70B, 327_680, id="grouped heads, 80 layers"),
        pytest.param(configs.LLAMA_2_7B, 524_288, id="every head its own"),
        pytest.param(configs.FALCON_7B, 8_192, id="one key for all heads"),
        pytest.param(configs.QWEN3_0_6B, 114_688, id="a head size of its own"),
        pytest.param(configs.MIXTRAL_8X7B, 131_072, id="experts"),
        pytest.param(configs.DEEPSEEK_V2_LITE, 27 * 576 * 2, id="latent attention"),
        pytest.param(configs.GEMMA_3_4B, 139_264, id="windows in five of six layers"),
        pytest.param(configs.GPT_2, 36_864, id="old names"),
    ],
)
def test_keys_and_values_of_one_token_take_what_is_known_of_each_model(config: Config, bytes_per_token: int) -> None:
    assert read_shape(config).kv_bytes_per_token(2) == bytes_per_token


@pytest.mark.parametrize(
    ("config", "millions", "tolerance"),
    [
        pytest.param(configs.LLAMA_8B, 8_030.261_248, 0, id="llama-3.1-8b"),
        pytest.param(configs.LLAMA_70B, 70_553.706_496, 0, id="llama-3.1-70b"),
        pytest.param(configs.QWEN3_0_6B, 596.049_920, 1e-4, id="qwen3-0.6b"),
        pytest.param(configs.MISTRAL_7B_V01, 7_241.732_096, 0, id="mistral-7b"),
        pytest.param(configs.MIXTRAL_8X7B, 46_702.792_704, 1e-4, id="mixtral-8x7b"),
        pytest.param(configs.DEEPSEEK_V2_LITE, 15_706.484_224, 1e-3, id="deepseek-v2-lite"),
        pytest.param(configs.DEEPSEEK_V3, 671_026.404_352, 1e-3, id="deepseek-v3"),
        pytest.param(configs.QWEN3_30B_A3B, 30_532.122_624, 1e-3, id="qwen3-30b-a3b"),
        pytest.param(configs.GEMMA_3_4B, 3_880.263_168, 1e-3, id="gemma-3-4b, text part"),
        pytest.param(configs.FALCON_7B, 6_921.720_704, 1e-3, id="falcon-7b"),
    ],
)
def test_parameters_are_counted_from_sizes_alone(config: Config, millions: float, tolerance: float) -> None:
    assert read_shape(config).parameters.total == pytest.approx(millions * 1e6, rel=tolerance or 1e-9)


def test_windows_bound_a_long_sequence_and_not_a_short_one() -> None:
    mistral = read_shape(configs.MISTRAL_7B_V01)
    assert mistral.kv == (KvLayers(32, 8, 256, 4096),)
    assert mistral.kv_bytes_for(1000, 2) == 1000 * 131_072
    assert mistral.kv_bytes_for(32_768, 2) == 4096 * 131_072
    gemma = read_shape(configs.GEMMA_3_4B)
    assert gemma.kv == (KvLayers(5, 4, 512), KvLayers(29, 4, 512, 1024))
    assert gemma.kv_bytes_for(131_072, 2) == 2 * 4 * 512 * (5 * 131_072 + 29 * 1024)


@pytest.mark.parametrize(
    ("change", "sliding"),
    [
        ({"model_type": "gemma2", "sliding_window": 4096}, 16),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 4),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"model_type": "new", "sliding_window": 4096}, 0),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 16}, 16),
        ({"attention_chunk_size": 8192, "layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8}, 24),
        ({"sliding_window_pattern": 4, "sliding_window": 4096, "model_type": "cohere2"}, 24),
    ],
)
def test_each_family_says_in_its_own_way_which_layers_slide(change: Config, sliding: int) -> None:
    shape = read_shape(configs.LLAMA_8B | change)
    assert sum(group.layers for group in shape.kv if group.window_tokens) == sliding
    assert sum(group.layers for group in shape.kv) == 32


def test_layers_without_keys_and_layers_that_borrow_them_take_nothing() -> None:
    hybrid = configs.LLAMA_8B | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8}
    assert read_shape(hybrid).kv_bytes_per_token(2) == 131_072 // 4
    borrowing = configs.LLAMA_8B | {"num_kv_shared_layers": 16}
    assert read_shape(borrowing).kv_bytes_per_token(2) == 131_072 // 2


@pytest.mark.parametrize(("tensor", "share"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_ranks_share_the_heads_and_repeat_what_is_fewer_than_they(tensor: int, share: int) -> None:
    assert read_shape(configs.LLAMA_70B).kv_bytes_per_token(2, tensor) == 327_680 * share // 8
    latent = read_shape(configs.DEEPSEEK_V2_LITE)
    assert latent.kv_bytes_per_token(2, tensor) == latent.kv_bytes_per_token(2)


@pytest.mark.parametrize(
    ("quantisation", "method", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", 4),
        ({"quant_method": "awq", "w_bit": 4}, "awq", 4),
        ({"quant_method": "fp8"}, "fp8", 8),
        ({"quant_method": "mxfp4"}, "mxfp4", 4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
         "compressed-tensors", 8),
        ({"quant_method": "of the future"}, "of the future", 16),
    ],
)  # fmt: skip
def test_quantised_checkpoints_say_how_many_bits(quantisation: Config, method: str, bits: int) -> None:
    shape = read_shape(configs.LLAMA_8B | {"quantization_config": quantisation})
    assert (shape.quantisation, shape.weight_bits) == (method, bits)


def test_a_checkpoint_may_ask_for_a_smaller_cache() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert read_shape(configs.LLAMA_8B | {"quantization_config": scheme}).kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is absent"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; a whole number"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"layer_types": ["full_attention"]}, "layer_types must be a list of 32"),
        ({"layer_types": "all"}, "layer_types must be a list"),
        ({"layer_types": ["sliding_attention"] * 32}, "sliding_window is absent"),
        ({"num_hidden_layers": 10**9}, "no model has more than 10000"),
        ({"vocab_size": 10**5000}, r"vocab_size is above 10\^12"),
        ({"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": "x"}}}}}, "num_bits is 'x'"),
    ],
)
def test_what_is_missing_or_odd_is_refused_by_name(change: Config, words: str) -> None:
    with pytest.raises(ConfigUnusable, match=words):
        read_shape(configs.LLAMA_8B | change)


@pytest.mark.parametrize(
    "change", [{"text_config": -1}, {"model_type": []}, {"quantization_config": {"config_groups": 1}}]
)
def test_a_field_of_another_type_is_refused_too(change: Config) -> None:
    with pytest.raises(ConfigUnusable, match="of another type"):
        ModelFacts.read(configs.LLAMA_8B | change)
