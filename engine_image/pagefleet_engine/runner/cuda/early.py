"""Which kernels of a step are set up while the one before them ends, and which products bring their weights by then."""

import torch
from torch.nn import functional

from pagefleet_engine.kernels import early_gemm
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.layers import LayerWeights

EARLY_ROWS = 8
"""Up to so many rows kernels are set up early; more where `early_gemm` has the products (see bench/LOG.md)."""


class Early:
    """What of one model's steps is early, by their rows. The first layer stands for all."""

    def __init__(
        self, config: ModelConfig, layers: list[LayerWeights], device: torch.device, *, in_parts: bool
    ) -> None:
        """`in_parts`: products are the library's otherwise, and nothing comes between them and the sums after them."""
        self._config, self._layers, self._in_parts = config, layers, in_parts
        self._hopper = torch.cuda.get_device_capability(device) >= (9, 0)

    def sets_up(self, rows: int) -> bool:
        """Whether norms, rotations and activations are launched before the kernel before them has ended."""
        return self._hopper and (rows <= EARLY_ROWS or self.brings(rows, self._layers[0].down))

    def brings(self, rows: int, weight: torch.Tensor | None) -> bool:
        """Whether `early_gemm` computes this product of so many rows, in parts."""
        return self._in_parts and weight is not None and early_gemm.pays(rows, weight)

    def product(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A product that is added to the residual next: whole, or in parts, which are added up there."""
        if self.brings(len(rows), weight):
            return early_gemm.partial_product(rows, weight)
        return functional.linear(rows, weight)

    def projects(self, rows: int, layer: LayerWeights) -> bool:
        """Whether queries, keys and values come in parts: nothing is done to them before the rotation."""
        return layer.qkv_bias is None and self._config.head_norm != "all" and self.brings(rows, layer.qkv)

    def brings_layers(self, rows: int) -> bool:
        """Whether all products of a layer come in parts."""
        layer = self._layers[0]
        return self.projects(rows, layer) and self.brings(rows, layer.output) and self.brings(rows, layer.down)
