"""A first short forward of a transformers model, to see how it attends before it is trusted with a cache.

transformers hands attention the queries, keys and values of one layer, a mask, and what flash attention
would need. What is not in there (positions added to scores, attention sinks, keys shared between layers)
cannot be paged, and is refused here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pagefleet_engine.models.config import LayerAttention, ModelConfig
from pagefleet_engine.models.errors import ModelUnsupported

TRIAL_TOKENS = 24
_KNOWN_TENSORS = frozenset({"position_ids", "cache_position"})


@dataclass(frozen=True, slots=True)
class SeenLayer:
    """One call of a layer's attention. Sizes are (heads, KV heads, head size, value size)."""

    module: torch.nn.Module
    sizes: tuple[int, int, int, int]
    scale: float
    soft_cap: float | None
    window: int | None


@dataclass(slots=True)
class Trial:
    """Attends densely and notes what each layer asked for; `origin` names the model in errors."""

    origin: str
    layers: list[SeenLayer] = field(default_factory=list)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """transformers' attention interface: [1, heads, tokens, head size] in, [1, tokens, heads, head size] out."""
        scale, soft_cap = options.get("scaling"), options.get("softcap")
        seen = SeenLayer(
            module,
            (query.shape[1], key.shape[1], query.shape[3], value.shape[3]),
            query.shape[3] ** -0.5 if scale is None else float(scale),
            None if soft_cap is None else float(soft_cap),
            options.get("sliding_window"),
        )
        visible = _visible(query.shape[2], seen.window).to(query.device)
        self._check(module, attention_mask, visible, options)
        self.layers.append(seen)
        groups = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(groups, 1) for part in (key, value))
        scores = query @ keys.transpose(2, 3) * seen.scale
        if seen.soft_cap is not None:
            scores = torch.tanh(scores / seen.soft_cap) * seen.soft_cap
        mixed = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ values
        return mixed.transpose(1, 2).contiguous(), None

    def config(self, config: ModelConfig) -> ModelConfig:
        """`config` with the sizes, windows and scale that were seen. Raises ModelUnsupported."""
        modules = {id(layer.module) for layer in self.layers}
        if len(self.layers) != config.layers or len(modules) != config.layers:
            raise self._refusal(
                f"{len(self.layers)} calls of transformers' attention interface in {config.layers} layers; "
                "each layer must attend once, through it, with keys of its own"
            )
        kinds = {(layer.sizes, layer.scale, layer.soft_cap) for layer in self.layers}
        [(sizes, scale, soft_cap), *others] = kinds
        heads, kv_heads, head_size, value_size = sizes
        if others or head_size != value_size or head_size % 2 or heads % kv_heads:
            raise self._refusal(f"layers attend with {sorted(map(str, kinds))}; one even size and one scale is needed")
        return replace(
            config, heads=heads, kv_heads=kv_heads, head_size=head_size, query_scale=scale, attention_soft_cap=soft_cap,
            attention=tuple(LayerAttention(layer.window, None) for layer in self.layers),
        )  # fmt: skip

    def _check(
        self,
        module: torch.nn.Module,
        mask: torch.Tensor | None,
        visible: torch.Tensor,
        options: Mapping[str, Any],
    ) -> None:
        """Refuse what this interface cannot say."""
        if mask is not None and not torch.equal(_seen_by(mask).expand(visible.shape), visible):
            raise self._refusal("a layer's mask is neither causal nor a sliding window")
        if mask is None and not getattr(module, "is_causal", True):
            raise self._refusal("a layer attends in both directions")
        for name, value in options.items():
            if isinstance(value, torch.Tensor) and name not in _KNOWN_TENSORS:
                raise self._refusal(f"a layer's attention takes {name!r}, which the paged one lacks")

    def _refusal(self, reason: str) -> ModelUnsupported:
        return ModelUnsupported(f"{self.origin}: {reason}")


def _visible(tokens: int, window: int | None) -> torch.Tensor:
    """[tokens, tokens]: whether a row's token sees a column's."""
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return seen if window is None else seen.triu(1 - window)


def _seen_by(mask: torch.Tensor) -> torch.Tensor:
    """A mask of either kind, true where seen, or 0 where seen and very low elsewhere: [tokens, tokens], bool."""
    return mask[0, 0] if mask.dtype is torch.bool else mask[0, 0] == 0
