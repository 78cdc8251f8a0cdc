"""A decoder's weights as tensors, in Hugging Face's row order, whatever names and fusions the files use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.tensor_names import (
    EMBEDDING,
    FINAL_NORM,
    FUSED,
    HEAD,
    NORMS,
    expert_names,
    has_experts,
    layer_name,
    router_name,
)
from pagefleet_engine.models.weights import Weights

Take = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer; matrices are [out, in], norms [hidden size]; None is what the family or the layer lacks.

    `qkv` is [(heads + 2 x KV heads) x head size, hidden size], queries first, then keys, then values,
    `qkv_bias` its rows' biases. `query_norm` and `key_norm` are [head size], or [heads x head size] and
    [KV heads x head size] where the norm is over all heads. `gate_up` is [2 x inner, hidden size], gate
    first. A layer of experts has `router` [experts, hidden size], `expert_gate_up` [experts, 2 x inner,
    hidden size] and `expert_down` [experts, hidden size, inner], and neither `gate_up` nor `down`.
    """

    qkv: torch.Tensor
    output: torch.Tensor
    input_norm: torch.Tensor | None = None
    qkv_bias: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None
    post_attention_norm: torch.Tensor | None = None
    mlp_norm: torch.Tensor | None = None
    gate_up: torch.Tensor | None = None
    down: torch.Tensor | None = None
    router: torch.Tensor | None = None
    expert_gate_up: torch.Tensor | None = None
    expert_down: torch.Tensor | None = None
    post_mlp_norm: torch.Tensor | None = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that are there."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(value for value in values if value is not None)


@dataclass(frozen=True, slots=True)
class TopWeights:
    """`embedding` and `head` [vocabulary, hidden size], the same tensor when they are tied; `final_norm`."""

    embedding: torch.Tensor
    final_norm: torch.Tensor
    head: torch.Tensor


def read_layer(weights: Weights, config: ModelConfig, index: int) -> LayerWeights:
    """Layer `index` on the CPU in the files' number format. Raises ModelBroken for what is missing."""

    def take(part: str) -> torch.Tensor:
        return weights.tensor(layer_name(index, part))

    def joined(kind: str) -> torch.Tensor:
        names = ("qkv",) if config.architecture in FUSED else ("q", "k", "v")
        return _cat([take(f"self_attn.{name}_proj.{kind}") for name in names])

    norms = {field: take(f"{module}.weight") for field, module in NORMS[config.norm_placement].items()}
    feed_forward = _experts(take, config) if has_experts(config, index) else _mlp(take, config)
    head_norms = config.head_norm != "none"
    return LayerWeights(
        qkv=joined("weight"),
        qkv_bias=joined("bias") if config.qkv_bias else None,
        output=take("self_attn.o_proj.weight"),
        query_norm=take("self_attn.q_norm.weight") if head_norms else None,
        key_norm=take("self_attn.k_norm.weight") if head_norms else None,
        **norms,
        **feed_forward,
    )


def read_top(weights: Weights, config: ModelConfig) -> TopWeights:
    """What is not in a layer. Raises ModelBroken for what is missing."""
    embedding = weights.tensor(EMBEDDING)
    return TopWeights(embedding, weights.tensor(FINAL_NORM), embedding if config.tied_head else weights.tensor(HEAD))


def _mlp(take: Take, config: ModelConfig) -> dict[str, torch.Tensor]:
    names = ("gate_up",) if config.architecture in FUSED else ("gate", "up")
    return {
        "gate_up": _cat([take(f"mlp.{name}_proj.weight") for name in names]),
        "down": take("mlp.down_proj.weight"),
    }


def _experts(take: Take, config: ModelConfig) -> dict[str, torch.Tensor]:
    count = 0 if config.experts is None else config.experts.count
    gate_up, down = [], []
    for expert in range(count):
        gate, up, out = expert_names(config, expert)
        gate_up.append(torch.cat([take(gate), take(up)]))
        down.append(take(out))
    return {
        "router": take(router_name(config)),
        "expert_gate_up": torch.stack(gate_up),
        "expert_down": torch.stack(down),
    }


def _cat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One matrix of all rows; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
