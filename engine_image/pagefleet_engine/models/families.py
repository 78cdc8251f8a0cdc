"""How each family differs from Llama, read from its config.json. Each function names what it changes."""

from collections.abc import Callable
from dataclasses import replace

from pagefleet_engine.models.config import Experts, LayerAttention, ModelConfig, uniform_attention
from pagefleet_engine.models.config_fields import Fields
from pagefleet_engine.models.config_rope import DEFAULT_THETA, rope_of

SLIDING, FULL = "sliding_attention", "full_attention"
TIED = frozenset({"gemma", "gemma2", "gemma3_text", "smollm3"})
"""Families whose head is tied when config.json does not say."""
_GEMMA3_THETA = 1e6


def _llama(fields: Fields, base: ModelConfig) -> ModelConfig:
    fields.only("hidden_act", "silu")
    return base


def _mistral(fields: Fields, base: ModelConfig) -> ModelConfig:
    return replace(_llama(fields, base), attention=uniform_attention(base.layers, _window(fields)))


def _phi3(fields: Fields, base: ModelConfig) -> ModelConfig:
    return _mistral(fields, base)


def _qwen2(fields: Fields, base: ModelConfig) -> ModelConfig:
    return replace(_qwen(fields, base), qkv_bias=True)


def _qwen3(fields: Fields, base: ModelConfig) -> ModelConfig:
    return replace(_qwen(fields, base), head_norm="head")


def _qwen(fields: Fields, base: ModelConfig) -> ModelConfig:
    base = _llama(fields, base)
    if not fields.flag("use_sliding_window") or not fields.has("sliding_window"):
        return base
    first = fields.whole("max_window_layers")
    return replace(base, attention=_alternating(fields, base.layers, lambda index: index >= first))


def _gemma(fields: Fields, base: ModelConfig) -> ModelConfig:
    """The first Gemma; its early files say "gelu" and mean the tanh form."""
    fields.only("hidden_act", "gelu", "gelu_pytorch_tanh")
    fields.only("hidden_activation", "gelu_pytorch_tanh")
    return replace(base, activation="gelu_tanh", norm_unit_offset=True, embedding_scale=base.hidden_size**0.5)


def _gemma2(fields: Fields, base: ModelConfig) -> ModelConfig:
    fields.only("use_bidirectional_attention", False)
    return replace(
        _gemma(fields, base),
        norm_placement="sandwich",
        query_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
        logit_soft_cap=fields.optional_number("final_logit_softcapping"),
        attention=_alternating(fields, base.layers, lambda index: index % 2 == 0),
    )


def _gemma3(fields: Fields, base: ModelConfig) -> ModelConfig:
    """Sliding layers have their own rope, which comes second."""
    pattern = fields.count("sliding_window_pattern", fields.count("_sliding_window_pattern", 6))
    layers = _alternating(fields, base.layers, lambda index: (index + 1) % pattern != 0)
    given = fields.values.get("rope_parameters")
    typed = given if isinstance(given, dict) and (FULL in given or SLIDING in given) else {}
    scaled = typed.get(FULL) or fields.values.get("rope_scaling") or {}
    theta = fields.number("rope_theta", _GEMMA3_THETA)
    local_theta = fields.number("rope_local_base_freq", DEFAULT_THETA)
    return replace(
        _gemma2(fields, base),
        head_norm="head",
        attention=tuple(LayerAttention(layer.window, 0 if layer.window is None else 1) for layer in layers),
        ropes=(
            rope_of(fields, "rope_parameters", scaled, base.head_size, theta),
            rope_of(fields, "rope_parameters", typed.get(SLIDING) or {}, base.head_size, local_theta),
        ),
    )


def _smollm3(fields: Fields, base: ModelConfig) -> ModelConfig:
    """Every n-th layer has no rope; with a sliding window, those layers have it."""
    base = _llama(fields, base)
    interval = fields.count("no_rope_layer_interval", 4)
    given = fields.values.get("no_rope_layers") or [(index + 1) % interval for index in range(base.layers)]
    if not isinstance(given, list) or len(given) != base.layers:
        raise fields.refusal("no_rope_layers", f"a list of {base.layers} numbers is needed")
    layers = uniform_attention(base.layers)
    if fields.flag("use_sliding_window"):
        layers = _alternating(fields, base.layers, lambda index: not given[index])
    turned = zip(layers, given, strict=True)
    return replace(base, attention=tuple(LayerAttention(layer.window, 0 if has else None) for layer, has in turned))


def _granite(fields: Fields, base: ModelConfig) -> ModelConfig:
    return replace(
        _llama(fields, base),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        query_scale=fields.number("attention_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0),
    )


def _olmo2(fields: Fields, base: ModelConfig) -> ModelConfig:
    return replace(_llama(fields, base), norm_placement="post", head_norm="all")


def _mixtral(fields: Fields, base: ModelConfig) -> ModelConfig:
    experts = Experts(
        fields.count("num_local_experts"),
        fields.count("num_experts_per_tok"),
        base.intermediate_size,
        renormalise=True,
    )
    return replace(_mistral(fields, base), experts=experts)


def _qwen3_moe(fields: Fields, base: ModelConfig) -> ModelConfig:
    step, listed = fields.count("decoder_sparse_step", 1), fields.values.get("mlp_only_layers") or []
    experts = Experts(
        _expert_count(fields),
        fields.count("num_experts_per_tok"),
        fields.count("moe_intermediate_size"),
        renormalise=fields.flag("norm_topk_prob"),
        dense_layers=frozenset(index for index in range(base.layers) if index in listed or (index + 1) % step),
    )
    window = _window(fields) if fields.flag("use_sliding_window") else None
    attention = uniform_attention(base.layers, window)
    return replace(_llama(fields, base), head_norm="head", attention=attention, experts=experts)


def _olmoe(fields: Fields, base: ModelConfig) -> ModelConfig:
    if fields.has("clip_qkv"):
        raise fields.refusal("clip_qkv", "this engine does not clip projections")
    experts = Experts(
        _expert_count(fields),
        fields.count("num_experts_per_tok"),
        base.intermediate_size,
        renormalise=fields.flag("norm_topk_prob"),
    )
    return replace(_llama(fields, base), head_norm="all", experts=experts)


FAMILIES: dict[str, Callable[[Fields, ModelConfig], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "granite": _granite,
    "olmo2": _olmo2,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
}
"""By Hugging Face's `model_type`."""
KNOWN = ", ".join(sorted(FAMILIES))
"""What to tell somebody whose model is another."""


def _window(fields: Fields) -> int | None:
    return fields.count("sliding_window") if fields.has("sliding_window") else None


def _alternating(fields: Fields, layers: int, slides: Callable[[int], bool]) -> tuple[LayerAttention, ...]:
    """Windows by `layer_types`, or by the family's rule in files that lack them."""
    window, types = _window(fields), fields.values.get("layer_types")
    if types is None:
        types = [SLIDING if slides(index) else FULL for index in range(layers)]
    if not isinstance(types, list) or len(types) != layers or not set(types) <= {SLIDING, FULL}:
        raise fields.refusal("layer_types", f"a list of {layers} times {SLIDING!r} or {FULL!r} is needed")
    if window is None and SLIDING in types:
        raise fields.refusal("sliding_window", "layers slide, so it is needed")
    return tuple(LayerAttention(window if kind == SLIDING else None) for kind in types)


def _expert_count(fields: Fields) -> int:
    """transformers 5 writes `num_local_experts` for some families, older files `num_experts`."""
    return fields.count("num_local_experts" if fields.has("num_local_experts") else "num_experts")
