"""What a step's rows are given by their own adapters, on a GPU: two small products and a kernel between them.

All shapes depend on the number of rows alone, so it is captured like everything else.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from pagefleet_engine.kernels.own_ranks import keep_own
from pagefleet_engine.models.adapters import Adapters

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


class Adapting:
    """Adds to products; of adapters that there are, or of none."""

    def __init__(self, adapters: Adapters | None, linear: Linear) -> None:
        """`linear` is the decoder's product, so that a fixed order of sums holds here too."""
        self._owners = {} if adapters is None else adapters.owners
        self._layers = () if adapters is None else tuple(layer.products() for layer in adapters.layers)
        self._linear = linear
        self.tensors = () if adapters is None else adapters.tensors()

    @property
    def needed(self) -> bool:
        """Whether there is any adapter: then no product may hold what comes after it."""
        return bool(self._layers)

    def add_(
        self, index: int, product: str, rows: torch.Tensor, out: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Add to `out` [rows, out] in place what the adapters `chosen` ([rows or more] int32) give `rows` [rows, in]
        in a product of layer `index`; gives `out`."""
        low = self._layers[index].get(product) if self._layers else None
        if low is None:
            return out
        inner = self._linear(rows, low.down, None)
        keep_own(inner, self._owners[product], chosen)
        if self._linear is functional.linear:
            return torch.addmm(out, inner, low.up.t(), out=out)
        return out.add_(self._linear(inner, low.up, None))
