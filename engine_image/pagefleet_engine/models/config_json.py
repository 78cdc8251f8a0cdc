"""From Hugging Face's config.json to a decoder's configuration."""

from collections.abc import Mapping
from typing import Any

from pagefleet_engine.models.config import ModelConfig, uniform_attention
from pagefleet_engine.models.config_fields import Fields, checked, unique
from pagefleet_engine.models.config_foreign import foreign_config
from pagefleet_engine.models.config_rope import read_rope
from pagefleet_engine.models.errors import ModelUnsupported
from pagefleet_engine.models.families import FAMILIES, KNOWN, TIED
from pagefleet_engine.models.rope import Rope
from pagefleet_engine.models.source import CONFIG_FILE, GENERATION_FILE

_VISION = ("vision_config", "audio_config", "vision_tower")
_STATE = ("mamba_d_state", "ssm_state_size", "mamba_num_heads", "linear_num_value_heads", "conv_L_cache", "lru_width")
_STATE_TYPES = frozenset({"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"})


def from_json(origin: str, config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """From config.json and generation_config.json (its eos list goes first). Raises ModelUnsupported."""
    fields = Fields(origin, config)
    architecture = fields.values.get("model_type")
    if not isinstance(architecture, str):
        raise fields.refusal("model_type", f"this engine runs {KNOWN}, and others through transformers")
    refuse_other_kinds(fields)
    generated = Fields(origin.replace(CONFIG_FILE, GENERATION_FILE), generation)
    if architecture in FAMILIES:
        return checked(origin, FAMILIES[architecture](fields, _like_llama(fields, generated, architecture)))
    return checked(origin, foreign_config(fields, generated, architecture))


def refuse_other_kinds(fields: Fields) -> None:
    """Raise ModelUnsupported for what is no decoder over keys and values, or has quantized weights."""
    if fields.has("quantization_config"):
        raise fields.refusal("quantization_config", "use the model's unquantised weights")
    for name in _VISION:
        if fields.has(name):
            raise ModelUnsupported(f"{fields.origin}: {name} is there; this engine serves models of text alone")
    if fields.values.get("is_encoder_decoder"):
        raise fields.refusal("is_encoder_decoder", "this engine serves decoders alone")
    if fields.has("kv_lora_rank"):
        raise fields.refusal("kv_lora_rank", "latent attention (MLA) needs another KV cache than this engine has")
    if fields.values.get("model_type") in _STATE_TYPES:
        raise fields.refusal("model_type", "layers with a state of their own are not served")
    for name in _STATE:
        if fields.has(name):
            raise fields.refusal(name, "layers with a state of their own (Mamba and the like) are not served")


def _like_llama(fields: Fields, generated: Fields, architecture: str) -> ModelConfig:
    """What all families write alike, the rest as in Llama."""
    for name in ("attention_bias", "mlp_bias"):
        fields.only(name, False)
    heads, hidden_size = (fields.count(name) for name in ("num_attention_heads", "hidden_size"))
    layers = fields.layers("num_hidden_layers")
    head_size = fields.count("head_dim", hidden_size // heads)
    bos_ids = fields.token_ids("bos_token_id") or generated.token_ids("bos_token_id")
    return ModelConfig(
        layers=layers,
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_size=head_size,
        vocab_size=fields.count("vocab_size"),
        max_positions=fields.count("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        ropes=_single_rope(fields, head_size),
        attention=uniform_attention(layers),
        query_scale=head_size**-0.5,
        tied_head=fields.flag("tie_word_embeddings", architecture in TIED),
        bos_id=bos_ids[0] if bos_ids else None,
        eos_ids=unique(generated.token_ids("eos_token_id"), fields.token_ids("eos_token_id")),
        weights_dtype=fields.values.get("dtype") or fields.values.get("torch_dtype"),
        architecture=architecture,
    )


def _single_rope(fields: Fields, head_size: int) -> tuple[Rope, ...]:
    """Nothing where each type of layer has its own: the family reads them."""
    given = fields.values.get("rope_parameters")
    by_layer_type = isinstance(given, dict) and any(isinstance(value, dict) for value in given.values())
    return () if by_layer_type else (read_rope(fields, head_size),)
