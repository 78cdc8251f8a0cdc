"""What a model's files say of its architecture; the Llama family is the one this engine runs.

Read from config.json with generation_config.json, or from GGUF metadata.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagefleet_engine.models.config_fields import Fields
from pagefleet_engine.models.errors import ModelBroken, ModelUnsupported
from pagefleet_engine.models.gguf import Gguf
from pagefleet_engine.models.source import CONFIG_FILE, GgufModel, ModelFiles

GENERATION_FILE = "generation_config.json"
ARCHITECTURE = "llama"
GGUF_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
ROPE_FREQUENCIES = "rope_freqs.weight"
_DEFAULT_ROPE_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All rotary frequencies divided by one factor (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low rotary frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class DividedFrequencies:
    """A divisor for each rotary frequency, as GGUF's `rope_freqs.weight` gives them."""

    divisors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | DividedFrequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of a Llama-family decoder.

    `eos_ids` are all tokens after which the model's own answer is over; `max_positions` is its window.
    """

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_head: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    weights_dtype: str | None = None
    """"float32", "bfloat16" or "float16" when the files say so."""


def read_config(files: ModelFiles) -> ModelConfig:
    """The model's configuration. Raises ModelUnsupported naming the field, or ModelBroken."""
    if isinstance(files, GgufModel):
        return from_gguf(Gguf(files.path))
    generation = files.path / GENERATION_FILE
    return from_json(
        str(files.path / CONFIG_FILE),
        read_json(files.path / CONFIG_FILE),
        read_json(generation) if generation.is_file() else {},
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises ModelBroken when it is not one."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelBroken(f"{path} holds no JSON object")
    return value


def from_json(origin: str, config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """From Hugging Face's config.json and generation_config.json (its eos list goes first)."""
    fields = Fields(origin, config)
    if fields.values.get("model_type") != ARCHITECTURE:
        raise fields.refusal("model_type", f"this engine runs {ARCHITECTURE!r}")
    fields.only("attention_bias", False)
    fields.only("mlp_bias", False)
    fields.only("hidden_act", "silu")
    if fields.has("quantization_config"):
        raise fields.refusal("quantization_config", "use the model's unquantised weights")
    heads, hidden_size = fields.count("num_attention_heads"), fields.count("hidden_size")
    theta, scaling = _rope(fields)
    generated = Fields(origin.replace(CONFIG_FILE, GENERATION_FILE), generation)
    bos_ids = fields.token_ids("bos_token_id") or generated.token_ids("bos_token_id")
    return _checked(
        origin,
        ModelConfig(
            layers=fields.count("num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=fields.count("intermediate_size"),
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_size=fields.count("head_dim", hidden_size // heads),
            vocab_size=fields.count("vocab_size"),
            max_positions=fields.count("max_position_embeddings"),
            norm_eps=fields.number("rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=scaling,
            tied_head=fields.flag("tie_word_embeddings"),
            bos_id=bos_ids[0] if bos_ids else None,
            eos_ids=_unique(generated.token_ids("eos_token_id"), fields.token_ids("eos_token_id")),
            weights_dtype=config.get("dtype") or config.get("torch_dtype"),
        ),
    )


def from_gguf(gguf: Gguf) -> ModelConfig:
    """From a GGUF file's metadata; the head is tied when the file has no `output.weight`."""
    fields = Fields(str(gguf.path), gguf.metadata)
    if fields.values.get("general.architecture") != ARCHITECTURE:
        raise fields.refusal("general.architecture", f"this engine runs {ARCHITECTURE!r}")
    for name in ("llama.expert_count", "llama.attention.sliding_window"):
        fields.only(name, 0)
    if "tokenizer.ggml.tokens" not in gguf.arrays:
        raise fields.refusal("tokenizer.ggml.tokens", "the file must carry its tokenizer")
    heads, hidden_size = fields.count("llama.attention.head_count"), fields.count("llama.embedding_length")
    head_size = fields.count("llama.attention.key_length", hidden_size // heads)
    fields.only("llama.rope.dimension_count", head_size)
    bos_ids = fields.token_ids("tokenizer.ggml.bos_token_id")
    return _checked(
        fields.origin,
        ModelConfig(
            layers=fields.count("llama.block_count"),
            hidden_size=hidden_size,
            intermediate_size=fields.count("llama.feed_forward_length"),
            heads=heads,
            kv_heads=fields.count("llama.attention.head_count_kv", heads),
            head_size=head_size,
            vocab_size=gguf.arrays["tokenizer.ggml.tokens"].count,
            max_positions=fields.count("llama.context_length"),
            norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon"),
            rope_theta=fields.number("llama.rope.freq_base", _DEFAULT_ROPE_THETA),
            rope_scaling=_gguf_scaling(fields, gguf),
            tied_head="output.weight" not in gguf.tensors,
            bos_id=bos_ids[0] if bos_ids else None,
            eos_ids=_unique(*(fields.token_ids(key) for key in GGUF_EOS_KEYS)),
        ),
    )


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Theta and scaling from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    given = fields.values.get(name) or {}
    if not isinstance(given, dict):
        raise fields.refusal(name, "an object is needed")
    rope = Fields(f"{fields.origin}: {name}", given)
    rope.only("partial_rotary_factor", 1, 1.0)
    theta = rope.number("rope_theta", fields.number("rope_theta", _DEFAULT_ROPE_THETA))
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return theta, Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_positions=rope.count("original_max_position_embeddings"),
        )
    raise ModelUnsupported(f"{rope.origin}: rope_type is {kind!r}; this engine runs default, linear or llama3")


def _gguf_scaling(fields: Fields, gguf: Gguf) -> RopeScaling | None:
    if ROPE_FREQUENCIES in gguf.tensors:
        return DividedFrequencies(tuple(gguf.tensor(ROPE_FREQUENCIES).reshape(-1).tolist()))
    fields.only("llama.rope.scaling.type", "none", "linear")
    if fields.values.get("llama.rope.scaling.type") == "linear":
        return LinearScaling(fields.number("llama.rope.scaling.factor"))
    return None


def _unique(*groups: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for group in groups for token_id in group))


def _checked(origin: str, config: ModelConfig) -> ModelConfig:
    """`config`, when its sizes fit each other; raises ModelUnsupported otherwise."""
    if config.heads % config.kv_heads:
        raise ModelUnsupported(
            f"{origin}: {config.heads} attention heads cannot share {config.kv_heads} KV heads evenly"
        )
    if config.head_size % 2:
        raise ModelUnsupported(f"{origin}: rotary embedding needs an even head size, it is {config.head_size}")
    return config
