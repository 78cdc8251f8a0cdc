"""A decoder of any of our families over packed tokens and paged keys and values, in plain torch; inference only.

Numerics: the order of sums depends on how many tokens a step holds, so the same prompt computed in
another batch, in other chunks or with a cached prefix gives logits that differ by rounding (float32: below
5e-4). A greedy answer is the same unless two tokens are that close.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from pagefleet_engine.models import experts, rotary
from pagefleet_engine.models.activation import gated
from pagefleet_engine.models.adapter_weights import AdapterSource
from pagefleet_engine.models.adapters import join_adapters
from pagefleet_engine.models.adapting import Addition, LayerAdditions, additions
from pagefleet_engine.models.attention import HeadShape, StepAttention
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.layers import LayerWeights, read_layer, read_top
from pagefleet_engine.models.packed import PackedStep
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.models.paired import Placement
from pagefleet_engine.models.weights import Weights
from pagefleet_engine.steps import Progress


class Decoder(PagedDecoder):
    """Weights and KV memory of one model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
        adapters: Sequence[AdapterSource] = (),
    ) -> None:
        """Read all weights; `allocate` must follow before `forward`. A step's adapters are places in `adapters`."""
        super().__init__(config, dtype, device)
        self._shape = HeadShape.of(config)
        self._norm_shape = (config.hidden_size,)
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()
        placement = Placement(config, dtype, device)
        with torch.inference_mode():
            top = read_top(weights, config)
            self._embedding = placement.matrix(top.embedding)
            self._layers = [
                placement.layer(read_layer(weights, config, index), index) for index in range(config.layers)
            ]
            self._final_norm = placement.norm(top.final_norm)
            self._head = self._embedding if config.tied_head else placement.matrix(top.head)
            self._adapters = join_adapters(adapters, config, placement.low_rank, device)
            self._rotations = [rotary.rotations(rope, max_positions).to(device)[:, None] for rope in config.ropes]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        layers = [tensor for layer in self._layers for tensor in layer.tensors()]
        adapters = () if self._adapters is None else self._adapters.tensors()
        kept = {id(tensor): tensor for tensor in [self._embedding, self._head, self._final_norm, *layers, *adapters]}
        return sum(tensor.nbytes for tensor in kept.values())

    def _forward(self, step: PackedStep, progress: Progress) -> torch.Tensor:
        config = self.config
        attention = StepAttention(step, self._shape, config, self._memory[0])
        positions = self._ints(step.positions)
        rotations = [table.index_select(0, positions) for table in self._rotations]
        hidden = self._embedding.index_select(0, self._ints(step.token_ids))
        if self._embedding_scale != 1.0:
            hidden.mul_(self._embedding_scale)
        adapted = additions(self._adapters, config.layers, step.adapters)
        for layer, memory, how, added in zip(self._layers, self._memory, config.attention, adapted, strict=True):
            normed = self._normed(hidden, layer.input_norm)
            projected = _linear(normed, layer.qkv, layer.qkv_bias, added.get("qkv"))
            self._norm_heads(projected, layer)
            if how.rope is not None:
                rotary.rotate_(self._rotating_heads(projected), rotations[how.rope])
            attention.write(memory, projected)
            attended = attention.attend(memory, projected, how.window)
            self._add(hidden, attended, layer.output, layer.post_attention_norm, added.get("output"))
            progress()
            self._add_mlp(hidden, layer, added)
            progress()
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        config = self.config
        logits = functional.linear(self._normed(hidden, self._final_norm), self._head).float()
        if config.logit_scale != 1.0:
            logits.mul_(config.logit_scale)
        if config.logit_soft_cap is not None:
            logits.div_(config.logit_soft_cap).tanh_().mul_(config.logit_soft_cap)
        return logits

    def _normed(self, hidden: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """RMS norm of each row; the rows themselves where the family has no norm here."""
        if weight is None:
            return hidden
        return functional.rms_norm(hidden, self._norm_shape, weight, self.config.norm_eps)

    def _norm_heads(self, projected: torch.Tensor, layer: LayerWeights) -> None:
        """Norm queries and keys in place, each head or all heads as one row: as long as the norm's weight."""
        if layer.query_norm is None or layer.key_norm is None:
            return
        queries, keys, _ = projected.split([self._shape.query_size, *[self._shape.key_size] * 2], 1)
        for part, weight in ((queries, layer.query_norm), (keys, layer.key_norm)):
            heads = part.unflatten(1, (-1, len(weight)))
            heads.copy_(functional.rms_norm(heads, (len(weight),), weight, self.config.norm_eps))

    def _rotating_heads(self, projected: torch.Tensor) -> torch.Tensor:
        """Queries and keys, [tokens, heads + KV heads, head size]."""
        shape = self._shape
        return projected[:, : shape.query_size + shape.key_size].unflatten(1, (-1, shape.head_size))

    def _add_mlp(self, hidden: torch.Tensor, layer: LayerWeights, added: LayerAdditions) -> None:
        """Add to `hidden` in place what the layer's MLP or its experts make of it."""
        config, normed = self.config, self._normed(hidden, layer.mlp_norm)
        if layer.gate_up is not None and layer.down is not None:
            inner = gated(_linear(normed, layer.gate_up, None, added.get("gate_up")), config.activation)
            self._add(hidden, inner, layer.down, layer.post_mlp_norm, added.get("down"))
        elif config.experts is not None:
            mixed = experts.mixed(normed, layer, config.experts, config.activation)
            hidden.add_(self._normed(mixed, layer.post_mlp_norm), alpha=config.residual_scale)

    def _add(
        self,
        hidden: torch.Tensor,
        inner: torch.Tensor,
        matrix: torch.Tensor,
        norm: torch.Tensor | None,
        addition: Addition | None,
    ) -> None:
        """Add `inner` times `matrix`, and its `addition`, to `hidden` in place, normed first where there is a norm."""
        scale = self.config.residual_scale
        if norm is not None:
            hidden.add_(self._normed(_linear(inner, matrix, None, addition), norm), alpha=scale)
            return
        hidden.addmm_(inner, matrix.t(), alpha=scale)
        if addition is not None:
            addition.add_(inner, hidden, scale)


def _linear(
    rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, addition: Addition | None
) -> torch.Tensor:
    out = functional.linear(rows, matrix, bias)
    if addition is not None:
        addition.add_(rows, out)
    return out
