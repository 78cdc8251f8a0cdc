"""A Llama-family decoder over packed tokens and paged keys and values; inference only.

Numerics: the order of sums depends on how many tokens a step holds, so the same prompt computed in
another batch, in other chunks or with a cached prefix gives logits that differ by rounding (float32: below
5e-4). A greedy answer is the same unless two tokens are that close.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.models import rotary
from pagefleet_engine.models.attention import HeadShape, StepAttention
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.layers import read_layer, read_top
from pagefleet_engine.models.packed import Ints, PackedStep
from pagefleet_engine.models.weights import Weights
from pagefleet_engine.steps import Progress, no_progress


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's weights; matrices are [out, in], queries, keys and values in one, gate and up in one."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Decoder:
    """Weights and KV memory of one model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_positions: int,
    ) -> None:
        """Read all weights; `allocate` must follow before `forward`."""
        self.config, self.dtype, self.device = config, dtype, device
        self._shape = HeadShape.of(config)
        self._norm_shape = (config.hidden_size,)
        self._memory: list[torch.Tensor] = []
        with torch.inference_mode():
            top = read_top(weights, config)
            self._embedding = self._take(top.embedding)
            self._layers = [self._layer(weights, index) for index in range(config.layers)]
            self._final_norm = self._take(top.final_norm)
            self._head = self._embedding if config.tied_head else self._take(top.head)
            self._rotations = rotary.rotations(config.ropes[0], max_positions).to(device)[:, None]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""
        layers = [getattr(layer, name) for layer in self._layers for name in _Layer.__slots__]
        kept = {id(tensor): tensor for tensor in [self._embedding, self._head, self._final_norm, *layers]}
        return sum(tensor.nbytes for tensor in kept.values())

    def allocate(self, num_blocks: int) -> None:
        """Make the KV memory: zeros, since masked scores still read what was never written."""
        heads, block_size = 2 * self._shape.kv_heads, BLOCK_TOKENS * self._shape.head_size
        shape = (heads, num_blocks, block_size)
        self._memory = [self._zeros(shape) for _ in range(self.config.layers)]

    def forward(self, step: PackedStep, progress: Progress = no_progress) -> torch.Tensor:
        """Compute a step and store its keys and values; hidden states [tokens, hidden size] before the head.

        `progress` is called twice a layer.
        """
        with torch.inference_mode():
            return self._forward(step, progress)

    def _forward(self, step: PackedStep, progress: Progress) -> torch.Tensor:
        config, shape = self.config, self._shape
        attention = StepAttention(step, shape, self._memory[0])
        rotation = self._rotations.index_select(0, self._ints(step.positions))
        hidden = self._embedding.index_select(0, self._ints(step.token_ids))
        rotated_heads = (shape.groups + 1) * shape.kv_heads
        for layer, memory in zip(self._layers, self._memory, strict=True):
            normed = functional.rms_norm(hidden, self._norm_shape, layer.attention_norm, config.norm_eps)
            projected = functional.linear(normed, layer.qkv)
            rotary.rotate_(projected, rotated_heads, rotation)
            attention.write(memory, projected)
            hidden.addmm_(attention.attend(memory, projected), layer.output.t())
            progress()
            normed = functional.rms_norm(hidden, self._norm_shape, layer.mlp_norm, config.norm_eps)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
            hidden.addmm_(functional.silu(gate).mul_(up), layer.down.t())
            progress()
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [rows, vocabulary], float32, of some rows of `forward`'s result."""
        with torch.inference_mode():
            normed = functional.rms_norm(hidden, self._norm_shape, self._final_norm, self.config.norm_eps)
            return functional.linear(normed, self._head).float()

    def scrub(self, blocks: torch.Tensor) -> None:
        """Replace what is not finite in these blocks by zeros, so that their next user is not touched."""
        with torch.inference_mode():
            for memory in self._memory:
                kept = memory.index_select(1, blocks)
                memory.index_copy_(1, blocks, torch.where(kept.isfinite(), kept, 0.0))

    def _zeros(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Zeros; on a CPU the kernel's own zero pages, given out at first use: torch would write them now."""
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        size_bytes = math.prod(shape) * self.dtype.itemsize
        return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(self.dtype).view(shape)

    def _ints(self, values: Ints) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _take(self, tensor: torch.Tensor | None) -> torch.Tensor:
        assert tensor is not None
        return tensor.to(device=self.device, dtype=self.dtype).contiguous()

    def _layer(self, weights: Weights, index: int) -> _Layer:
        config, layer = self.config, read_layer(weights, self.config, index)
        queries, keys, values = layer.qkv.split([self._shape.query_size, *[self._shape.key_size] * 2])
        paired = [
            rotary.pairs_together(queries, config.heads),
            rotary.pairs_together(keys, config.kv_heads),
            values,
        ]
        return _Layer(
            attention_norm=self._take(layer.input_norm),
            qkv=self._take(torch.cat(paired)),
            output=self._take(layer.output),
            mlp_norm=self._take(layer.mlp_norm),
            gate_up=self._take(layer.gate_up),
            down=self._take(layer.down),
        )
