"""What a decoder is made of, as one value: sizes, constants and the ways in which families differ.

Made from a model's files by `config_files.read_config`.
"""

from dataclasses import dataclass
from typing import Literal

from pagefleet_engine.models.rope import Rope

NormPlacement = Literal["pre", "sandwich", "post"]
HeadNorm = Literal["none", "head", "all"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """How one layer attends.

    `window` is the number of newest positions that a token sees, itself counted in (None: all).
    `rope` is an index into `ModelConfig.ropes` (None: this layer knows no positions).
    """

    window: int | None = None
    rope: int | None = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP: each token goes through `per_token` of `count`.

    The router's softmax is taken over all experts in float32; `renormalise` makes the chosen weights sum
    to 1. Layers in `dense_layers` keep a plain MLP of `ModelConfig.intermediate_size`.
    """

    count: int
    per_token: int
    intermediate_size: int
    renormalise: bool
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of a decoder; what has a default is as in Llama.

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
    ropes: tuple[Rope, ...]
    attention: tuple[LayerAttention, ...]
    """One for each layer."""
    query_scale: float
    """Scores are queries times keys times this; head size ** -0.5 in Llama."""
    tied_head: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    weights_dtype: str | None = None
    """"float32", "bfloat16" or "float16" when the files say so."""
    architecture: str = "llama"
    """Hugging Face's `model_type`: it decides the names of tensors on disk, and who computes it."""
    foreign: bool = False
    """Whether transformers' code computes it (`models.foreign`): then only sizes, token ids and dtype count."""
    norm_placement: NormPlacement = "pre"
    """Norms before attention and MLP, before and after ("sandwich"), or after alone; after: before the
    residual sum."""
    norm_unit_offset: bool = False
    """Norms multiply by 1 + weight (Gemma), the head norms too."""
    head_norm: HeadNorm = "none"
    """RMS norm of queries and keys before the rotation: of each head, or of all heads as one row."""
    qkv_bias: bool = False
    activation: Activation = "silu"
    attention_soft_cap: float | None = None
    """Scaled scores s become cap * tanh(s / cap) before the mask."""
    logit_soft_cap: float | None = None
    """As for scores, after `logit_scale`."""
    logit_scale: float = 1.0
    embedding_scale: float = 1.0
    """Embedding rows times this, rounded to the number format of the weights first, as transformers does."""
    residual_scale: float = 1.0
    """What attention and MLP give is multiplied by this before it is added."""
    experts: Experts | None = None


def uniform_attention(layers: int, window: int | None = None) -> tuple[LayerAttention, ...]:
    """Every layer alike, with the first rope."""
    return (LayerAttention(window),) * layers
