"""Weights as the plain torch decoder takes them: on its device, rotary pairs side by side, norms ready to use."""

from dataclasses import dataclass, fields, replace

import torch

from pagefleet_engine.models.adapters import LowRank
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.layers import LayerWeights
from pagefleet_engine.models.rotary import pairs_together

_NORMS = frozenset(field.name for field in fields(LayerWeights) if field.name.endswith("_norm"))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tensors go, and in which number format."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device

    def matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same numbers on the device."""
        return tensor.to(device=self.device, dtype=self.dtype).contiguous()

    def norm(self, weight: torch.Tensor) -> torch.Tensor:
        """What rows are multiplied by: 1 + weight in families that store it so, added in float32."""
        return self.matrix(weight.float() + 1 if self.config.norm_unit_offset else weight)

    def layer(self, layer: LayerWeights, index: int) -> LayerWeights:
        """Layer `index` with its queries', keys' and their norms' rows in the order of rotary pairs."""
        paired = self._paired(layer, index)
        placed = {
            field.name: self.norm(tensor) if field.name in _NORMS else self.matrix(tensor)
            for field in fields(paired)
            if (tensor := getattr(paired, field.name)) is not None
        }
        return replace(paired, **placed)

    def low_rank(self, low: LowRank, product: str, index: int) -> LowRank:
        """What adapters add to a product of layer `index`, its outputs in the order of the layer's own."""
        rope = self.config.attention[index].rope
        up = low.up
        if product == "qkv" and rope is not None:
            up = self._queries_and_keys(up, self.config.ropes[rope].size)
        return LowRank(self.matrix(low.down), self.matrix(up))

    def _paired(self, layer: LayerWeights, index: int) -> LayerWeights:
        config = self.config
        rope = config.attention[index].rope
        if rope is None:
            return layer
        size = config.ropes[rope].size
        whole = config.head_norm == "all"
        return replace(
            layer,
            qkv=self._queries_and_keys(layer.qkv, size),
            qkv_bias=None if layer.qkv_bias is None else self._queries_and_keys(layer.qkv_bias, size),
            query_norm=_paired_norm(layer.query_norm, config.heads if whole else 1, size),
            key_norm=_paired_norm(layer.key_norm, config.kv_heads if whole else 1, size),
        )

    def _queries_and_keys(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        heads = self.config.heads + self.config.kv_heads
        rotating = heads * self.config.head_size
        return torch.cat([pairs_together(rows[:rotating], heads, size), rows[rotating:]])


def _paired_norm(weight: torch.Tensor | None, heads: int, size: int) -> torch.Tensor | None:
    return None if weight is None else pairs_together(weight, heads, size)
