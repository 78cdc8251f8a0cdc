"""A rotary embedding from config.json: `rope_parameters` of transformers 5 or the older names."""

import math
from collections.abc import Mapping
from typing import Any

from pagefleet_engine.models.config_fields import Fields
from pagefleet_engine.models.errors import ModelUnsupported
from pagefleet_engine.models.rope import LinearScaling, Llama3Scaling, LongScaling, Rope, RopeScaling, YarnScaling

DEFAULT_THETA = 10000.0
PARTIAL = frozenset({"phi3"})
"""Families that rotate a part of each head; transformers ignores the field in others."""
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
_ORIGINAL = "original_max_position_embeddings"


def read_rope(fields: Fields, head_size: int) -> Rope:
    """The model's one rope. Raises ModelUnsupported for a kind of scaling that this engine lacks."""
    name = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    given = fields.values.get(name) or {}
    if not isinstance(given, dict):
        raise fields.refusal(name, "an object is needed")
    return rope_of(fields, name, given, head_size, fields.number("rope_theta", DEFAULT_THETA))


def rope_of(fields: Fields, name: str, given: Mapping[str, Any], head_size: int, theta: float) -> Rope:
    """The rope that the object `given`, called `name`, describes; `theta` and sizes when it has none itself."""
    rope = Fields(f"{fields.origin}: {name}", given)
    if fields.values.get("model_type") not in PARTIAL:
        rope.only("partial_rotary_factor", 1, 1.0)
        fields.only("partial_rotary_factor", 1, 1.0)
    share = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    size = int(head_size * share)
    if size % 2 or not 0 < size <= head_size:
        raise ModelUnsupported(
            f"{rope.origin}: rotary embedding needs an even number of at most the {head_size} elements "
            f"of a head, it is {size}"
        )
    return Rope(rope.number("rope_theta", theta), size, _scaling(fields, rope, size))


def _scaling(fields: Fields, rope: Fields, size: int) -> RopeScaling | None:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if fields.values.get("model_type") == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # what Phi-3's first files called it
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_max_positions=rope.count(_ORIGINAL),
            )
        case "longrope":
            return _long(fields, rope, size)
        case "yarn":
            return _yarn(fields, rope)
    raise ModelUnsupported(
        f"{rope.origin}: rope_type is {kind!r}; this engine runs default, linear, llama3, longrope or yarn"
    )


def _original_positions(fields: Fields, rope: Fields) -> int:
    return rope.count(_ORIGINAL, fields.count(_ORIGINAL, fields.count("max_position_embeddings")))


def _long(fields: Fields, rope: Fields, size: int) -> LongScaling:
    original = _original_positions(fields, rope)
    if original == 1:
        raise ModelUnsupported(
            f"{rope.origin}: {_ORIGINAL} is 1; lengths are measured by its logarithm, so give 2 or more"
        )
    factor = rope.number("factor", fields.count("max_position_embeddings") / original)
    amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongScaling(
        short_divisors=rope.numbers("short_factor", size // 2),
        long_divisors=rope.numbers("long_factor", size // 2),
        original_max_positions=original,
        amplitude=rope.number("attention_factor", amplitude),
    )


def _yarn(fields: Fields, rope: Fields) -> YarnScaling:
    original = _original_positions(fields, rope)
    factor = rope.number("factor", fields.count("max_position_embeddings") / original)
    amplitude = _yarn_amplitude(factor, 1.0)
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        amplitude = _yarn_amplitude(factor, rope.number("mscale")) / _yarn_amplitude(
            factor, rope.number("mscale_all_dim")
        )
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        beta_fast=rope.number("beta_fast", _BETA_FAST),
        beta_slow=rope.number("beta_slow", _BETA_SLOW),
        truncate=rope.flag("truncate", True),
        amplitude=rope.number("attention_factor", amplitude),
    )


def _yarn_amplitude(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
