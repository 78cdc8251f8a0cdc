"""What of a model decides its memory, read from config.json as Hugging Face lays it out. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_api.sizing.fields import Config, ConfigUnusable, count, value, whole
from pagefleet_api.sizing.parameters import Parameters, count_parameters

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_ALWAYS_SLIDING = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
_SLIDING_WHEN_SAID = frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe"})
_PATTERN_DEFAULTS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n_text": 5, "cohere2": 4}
"""Every so manieth layer sees everything, the others slide."""
_MOST_LAYERS = 10_000
"""Each of them takes memory here; the deepest models have some hundred."""
_QUANTISED_BITS = {"fp8": 8, "fbgemm_fp8": 8, "modelopt": 8, "mxfp4": 4}


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that cache alike: for each token, layer and KV head `elements` numbers, key and value together.

    With latent attention (MLA) there is one "head", the latent and the rotary key, and every rank has it whole
    (DeepSeek-V2, arXiv:2405.04434, section 2.1). `window_tokens` bounds what such a layer looks back (None: nothing).
    """

    layers: int
    kv_heads: int
    elements: int
    window_tokens: int | None = None

    def elements_per_token(self, tensor: int) -> int:
        """Numbers that one of `tensor` ranks keeps of a token; of fewer heads than ranks each rank has one."""
        return self.layers * self.elements * max(-(-self.kv_heads // tensor), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's sizes. `dtype` is what the files say; `weight_bits` is that of quantised matrices, None without."""

    architecture: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    inner_size: int
    """Of the widest MLP that a token goes through, or of all its experts together."""
    qkv_size: int
    """Numbers of a token's query, key and value in one layer."""
    vocab_size: int
    max_positions: int
    kv: tuple[KvLayers, ...]
    parameters: Parameters
    dtype: str | None = None
    quantisation: str | None = None
    weight_bits: int | None = None
    kv_dtype: str | None = None
    latent: bool = False
    multimodal: bool = False

    def kv_bytes_per_token(self, element_bytes: int, tensor: int = 1) -> int:
        """Bytes of one token in all layers, on one of `tensor` GPUs."""
        return element_bytes * sum(group.elements_per_token(tensor) for group in self.kv)

    def kv_bytes_for(self, tokens: int, element_bytes: int, tensor: int = 1) -> int:
        """Bytes of one sequence where layers with a window keep no more than that."""
        return element_bytes * sum(
            group.elements_per_token(tensor) * min(tokens, group.window_tokens or tokens) for group in self.kv
        )


def read_shape(config: Config) -> ModelShape:
    """From the content of config.json. Raises ConfigUnusable, naming the field."""
    multimodal = any(value(config, name) is not None for name in ("vision_config", "audio_config"))
    text = {**config, **(value(config, "text_config", "llm_config", "language_config") or {})}
    layers = _layers(text)
    hidden = count(text, "hidden_size", "n_embd", "d_model")
    heads = count(text, "num_attention_heads", "n_head", "n_heads")
    kv_heads = _kv_heads(text, heads)
    head_size = count(text, "head_dim", "kv_channels", "attention_head_dim", default=max(hidden // heads, 1))
    latent = value(text, "kv_lora_rank") is not None
    parameters = count_parameters(text, layers, hidden, heads, kv_heads, head_size)
    return ModelShape(
        architecture=str(value(text, "model_type") or "unknown"),
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=1 if latent else kv_heads,
        inner_size=parameters.active_inner_size,
        qkv_size=(heads + 2 * kv_heads) * head_size,
        vocab_size=count(text, "vocab_size", "padded_vocab_size"),
        max_positions=count(text, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx"),
        kv=_kv_layers(text, layers, kv_heads, head_size),
        parameters=parameters,
        dtype=_dtype(config, text),
        quantisation=_quantisation(config, text),
        weight_bits=_weight_bits(config, text),
        kv_dtype=_kv_dtype(config, text),
        latent=latent,
        multimodal=multimodal,
    )


def _layers(text: Config) -> int:
    found = count(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if found > _MOST_LAYERS:
        raise ConfigUnusable(f"config.json: num_hidden_layers is {found}; no model has more than {_MOST_LAYERS}")
    return found


def _kv_heads(text: Config, heads: int) -> int:
    """Falcon says `multi_query` where all heads share one key."""
    shared = text.get("multi_query") and not text.get("new_decoder_architecture")
    names = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
    return count(text, *names, default=1 if shared else heads)


def _kv_layers(text: Config, layers: int, kv_heads: int, head_size: int) -> tuple[KvLayers, ...]:
    """Layers by window, the unbounded first. Layers without keys and values (Mamba, linear attention) have none."""
    if value(text, "kv_lora_rank") is not None:
        return (KvLayers(layers, 1, count(text, "kv_lora_rank") + whole(text, "qk_rope_head_dim")),)
    windows = _windows(text, layers)
    kept = windows[: max(layers - whole(text, "num_kv_shared_layers"), 0)]
    sizes = sorted({window for window in kept if window is not None and window > 0})
    groups = [None, *sizes]
    found = [(window, sum(each == window for each in kept)) for window in groups]
    return tuple(KvLayers(number, kv_heads, 2 * head_size, window) for window, number in found if number)


def _windows(text: Config, layers: int) -> list[int | None]:
    """Each layer's window: None when it sees everything, 0 when it keeps no keys at all."""
    types = value(text, "layer_types", "layers_block_type")
    if types is not None:
        if not isinstance(types, list) or len(types) < layers:
            raise ConfigUnusable(f"config.json: layer_types must be a list of {layers} names, one a layer")
        return [_window_of(text, str(name)) for name in types[:layers]]
    return _windows_by_rule(text, layers)


def _window_of(text: Config, layer_type: str) -> int | None:
    if layer_type in {FULL, "attention"}:
        return None
    if layer_type == SLIDING:
        return count(text, "sliding_window")
    if layer_type == CHUNKED:
        return count(text, "attention_chunk_size")
    return 0


def _windows_by_rule(text: Config, layers: int) -> list[int | None]:
    """For files without `layer_types`: each family's own rule; where none is known, every layer sees everything."""
    family, window = str(value(text, "model_type")), value(text, "sliding_window")
    if window is None:
        return [None] * layers
    window = count(text, "sliding_window")
    if family in _ALWAYS_SLIDING:
        return [window] * layers
    if family in _SLIDING_WHEN_SAID and text.get("use_sliding_window"):
        first = whole(text, "max_window_layers")
        return [None if index < first else window for index in range(layers)]
    if family in _PATTERN_DEFAULTS:
        every = count(text, "sliding_window_pattern", "_sliding_window_pattern", default=_PATTERN_DEFAULTS[family])
        return [None if (index + 1) % every == 0 else window for index in range(layers)]
    return [None] * layers


def _each(configs: Sequence[Config], *names: str) -> Any:
    return next((found for config in configs if (found := value(config, *names)) is not None), None)


def _dtype(*configs: Config) -> str | None:
    found = _each(configs, "dtype", "torch_dtype")
    return None if found is None else str(found).removeprefix("torch.")


def _quantised(*configs: Config) -> Config | None:
    found = _each(configs, "quantization_config", "compression_config")
    return found if isinstance(found, dict) else None


def _quantisation(*configs: Config) -> str | None:
    """The method's name, for example gptq, awq, fp8, compressed-tensors."""
    found = _quantised(*configs)
    return None if found is None else str(value(found, "quant_method", "quant_algo") or "unknown")


def _weight_bits(*configs: Config) -> int | None:
    """Bits of a quantised matrix's numbers; 16 where the method is known to be one that this cannot read."""
    found = _quantised(*configs)
    if found is None:
        return None
    groups = value(found, "config_groups") or {}
    of_groups = [weights for group in groups.values() if (weights := group.get("weights") or {}).get("num_bits")]
    if of_groups:
        return max(count(weights, "num_bits") for weights in of_groups)
    if found.get("load_in_4bit"):
        return 4
    method = str(value(found, "quant_method", "quant_algo"))
    return count(found, "bits", "w_bit", "weight_bits", default=_QUANTISED_BITS.get(method, 16))


def _kv_dtype(*configs: Config) -> str | None:
    """The number format of the cache, where the checkpoint was calibrated for one."""
    found = _quantised(*configs) or {}
    scheme = found.get("kv_cache_scheme") or {}
    return "fp8" if isinstance(scheme, dict) and scheme.get("num_bits") == 8 else None
