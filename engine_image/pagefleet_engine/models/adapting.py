"""What a step's rows are given by their own adapters, in plain torch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from pagefleet_engine.models.adapters import Adapters, LowRank
from pagefleet_engine.models.packed import NO_ADAPTER, Ints


class Addition(NamedTuple):
    """What adapters add to one product in one step; `own` [rows, ranks] says which ranks are of a row's adapter."""

    low: LowRank
    own: torch.Tensor

    def add_(self, rows: torch.Tensor, out: torch.Tensor, scale: float = 1.0) -> None:
        """Add to `out` [rows, out] in place what `rows` [rows, in] are given, times `scale`."""
        inner = torch.where(self.own, rows @ self.low.down.t(), 0.0)
        out.addmm_(inner, self.low.up.t(), alpha=scale)


LayerAdditions = Mapping[str, Addition]
"""By the product's field of `LayerWeights`; what is not in it is given nothing."""


def additions(adapters: Adapters | None, layers: int, chosen: Ints | None) -> Sequence[LayerAdditions]:
    """One for each layer; `chosen` [rows] are the rows' adapters, None where nobody has one.

    Ranks before those of the first adapter in the step and after those of the last one are left out.
    """
    if adapters is None or chosen is None:
        return ({},) * layers
    wanted = chosen[chosen != NO_ADAPTER]
    first, last = int(wanted.min()), int(wanted.max())
    ranks = {product: slice(starts[first], starts[last + 1]) for product, starts in adapters.starts.items()}
    rows = torch.from_numpy(chosen)[:, None]
    own = {
        product: adapters.owners[product][part] == rows.to(adapters.owners[product].device)
        for product, part in ranks.items()
        if part.start < part.stop
    }
    return [
        {
            product: Addition(LowRank(low.down[ranks[product]], low.up[:, ranks[product]]), own[product])
            for product, low in layer.products().items()
            if product in own
        }
        for layer in adapters.layers
    ]
