"""What every decoder in plain torch has: KV memory in blocks, and a step computed into it."""

import math
from abc import ABC, abstractmethod

import numpy as np
import torch

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.models.attention import HeadShape
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.packed import Ints, PackedStep
from pagefleet_engine.steps import Progress, no_progress


class PagedDecoder(ABC):
    """Weights and KV memory of one model on one device; inference only."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """`allocate` must follow before `forward`."""
        self.config, self.dtype, self.device = config, dtype, device
        self._memory: list[torch.Tensor] = []

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of all weights on the device."""

    @abstractmethod
    def _forward(self, step: PackedStep, progress: Progress) -> torch.Tensor:
        """As `forward`, in inference mode."""

    @abstractmethod
    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `logits`, in inference mode."""

    def allocate(self, num_blocks: int) -> None:
        """Make the KV memory: zeros, since masked scores still read what was never written."""
        shape = HeadShape.of(self.config)
        sizes = (2 * shape.kv_heads, num_blocks, BLOCK_TOKENS * shape.head_size)
        self._memory = [self._zeros(sizes) for _ in range(self.config.layers)]

    def forward(self, step: PackedStep, progress: Progress = no_progress) -> torch.Tensor:
        """Compute a step and store its keys and values; hidden states [tokens, hidden size] before the head.

        `progress` is called at least once a layer.
        """
        with torch.inference_mode():
            return self._forward(step, progress)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [rows, vocabulary], float32, of some rows of `forward`'s result."""
        with torch.inference_mode():
            return self._logits(hidden)

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
