"""What LoRA adapters take beside the weights of their model. Pure.

One of rank r has r numbers for each row and each column of every matrix that it changes (arXiv:2106.09685). All
matrices of a layer are counted: engines set room aside for them, or the adapter has fewer and a little is left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_api.sizing.model import ModelShape

CONFIG_FILE = "adapter_config.json"
DEFAULT_RANK = 16
"""Of one that nobody says: vLLM's own default for the room that it sets aside."""
VLLM_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""What its --max-lora-rank takes, from its default on. Source: vllm/config/lora.py (v0.18)."""
_MATRICES_TO_INNER = 3
"""Gate, up and down."""
_SAME_ROOM_FOR_ALL = {"vllm": 0, "sglang": 1}
"""Engines that set the room of the highest rank aside for each, and for so many more."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What its adapter_config.json says."""

    rank: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """From the file's content. Raises ConfigUnusable."""
        rank = config.get("r")
        if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= VLLM_RANKS[-1]:
            most = f"a whole number from 1 to {VLLM_RANKS[-1]} is needed"
            raise ConfigUnusable(f"{CONFIG_FILE}: r is {repr(rank)[:40]}; {most}")
        return cls(rank)


def vllm_rank(ranks: Sequence[int]) -> int:
    """Its limit for adapters of these ranks."""
    return next(each for each in VLLM_RANKS if each >= max(ranks))


def adapters_bytes(shape: ModelShape, ranks: Sequence[int], runtime: str, element_bytes: int) -> int:
    """Of adapters of these ranks, in all layers."""
    if not ranks:
        return 0
    highest = vllm_rank(ranks) if runtime == "vllm" else max(ranks)
    more = _SAME_ROOM_FOR_ALL.get(runtime)
    rank = sum(ranks) if more is None else highest * (len(ranks) + more)
    numbers = _of_joined(shape) if runtime == "pagefleet" else _rows_and_columns(shape)
    return rank * shape.layers * numbers * element_bytes


def _of_joined(shape: ModelShape) -> int:
    """As our own engine has them: queries, keys and values are one product, gate and up another, whose rows every
    matrix's ranks have. See `pagefleet_engine.models.adapters`.
    """
    attention = 3 * (shape.hidden_size + shape.qkv_size) + _query_size(shape) + shape.hidden_size
    return attention + 2 * (shape.hidden_size + 2 * shape.inner_size) + shape.inner_size + shape.hidden_size


def _query_size(shape: ModelShape) -> int:
    return shape.heads * shape.qkv_size // (shape.heads + 2 * shape.kv_heads)


def _rows_and_columns(shape: ModelShape) -> int:
    """Of one layer: queries, keys, values and what comes of attention, then the MLP."""
    attention = 4 * shape.hidden_size + shape.qkv_size + _query_size(shape)
    return attention + _MATRICES_TO_INNER * (shape.hidden_size + shape.inner_size)
