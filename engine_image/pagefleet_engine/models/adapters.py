"""LoRA adapters as a decoder takes them: all of them side by side, so that one batch may hold requests of each.

To a product x · Wᵀ is added ((x · downᵀ) ∘ own) · upᵀ, where `down` [ranks, in] has the rows of all adapters' A one
after the other, `up` [out, ranks] the columns of their B times their scales, and `own` [rows, ranks] is 1 where a rank
is of the row's own adapter. No shape depends on who is in a batch. Where a product is several of the model's at once,
each has ranks of its own, and `up` is 0 outside its outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from pagefleet_engine.models.adapter_weights import AdapterSource, products
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.tensor_names import Shapes, expected_shapes, layer_name

NOBODY = -2
"""In place of an adapter: the owner of ranks that only fill up."""
RANK_STEP = 16
"""Ranks are filled up to a multiple of it: tensor cores take no fewer."""


class LowRank(NamedTuple):
    """What all adapters add to one product: `down` [ranks, in], `up` [out, ranks]."""

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAdapters:
    """One layer, by the fields of `LayerWeights`; None where no adapter adds anything."""

    qkv: LowRank | None = None
    output: LowRank | None = None
    gate_up: LowRank | None = None
    down: LowRank | None = None

    def products(self) -> dict[str, LowRank]:
        """All that are there, by field."""
        found: dict[str, LowRank | None] = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: low for name, low in found.items() if low is not None}


@dataclass(frozen=True, slots=True)
class Adapters:
    """All adapters. `owners` has for each product the adapter of each of its ranks, int32 [ranks]: those of adapter i
    are `starts[product][i]` up to `starts[product][i + 1]`, what only fills up comes last."""

    layers: tuple[LayerAdapters, ...]
    owners: Mapping[str, torch.Tensor]
    starts: Mapping[str, tuple[int, ...]]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All weights and owners."""
        low_ranks = [low for layer in self.layers for low in layer.products().values()]
        return (*self.owners.values(), *(tensor for low in low_ranks for tensor in low))


Place = Callable[[LowRank, str, int], LowRank]
"""Takes the product's field and the layer too; its result is on the decoder's device, in its number format."""


def join_adapters(
    sources: Sequence[AdapterSource], config: ModelConfig, place: Place, device: torch.device
) -> Adapters | None:
    """All adapters side by side, None when there are none; `config` has the sizes that this decoder computes with."""
    if not sources:
        return None
    of_layer = [products(config, index) for index in range(config.layers)]
    modules = {product: names for layer in of_layer for product, names in layer.items()}
    spans = {product: _spans(sources, names) for product, names in modules.items()}
    shapes, layers = expected_shapes(config), list[LayerAdapters]()
    for index, layer in enumerate(of_layer):
        joined = dict[str, LowRank]()
        for product, names in layer.items():
            matrices = {name: layer_name(index, f"{name}.weight") for name in names}
            low = _joined(sources, spans[product], matrices, shapes)
            if low is not None:
                joined[product] = place(low, product, index)
        layers.append(LayerAdapters(**joined))
    owners = {product: _owners(found) for product, found in spans.items()}
    starts = {product: _starts(found, len(sources)) for product, found in spans.items()}
    return Adapters(tuple(layers), {product: each.to(device) for product, each in owners.items()}, starts)


class _Span(NamedTuple):
    """Which ranks of a product are one adapter's for one module."""

    adapter: int
    module: str
    first: int
    past: int


def _spans(sources: Sequence[AdapterSource], modules: Sequence[str]) -> list[_Span]:
    spans: list[_Span] = []
    for number, source in enumerate(sources):
        for module in modules:
            if module in source.modules:
                first = spans[-1].past if spans else 0
                spans.append(_Span(number, module, first, first + source.folder.rank))
    return spans


def _ranks(spans: Sequence[_Span]) -> int:
    past = spans[-1].past if spans else 0
    return -(-past // RANK_STEP) * RANK_STEP


def _starts(spans: Sequence[_Span], adapters: int) -> tuple[int, ...]:
    """How many ranks are of adapters before the first, the second and so on, and before the end."""
    return tuple(
        sum(span.past - span.first for span in spans if span.adapter < adapter) for adapter in range(adapters + 1)
    )


def _owners(spans: Sequence[_Span]) -> torch.Tensor:
    owners = torch.full((_ranks(spans),), NOBODY, dtype=torch.int32)
    for span in spans:
        owners[span.first : span.past] = span.adapter
    return owners


def _joined(
    sources: Sequence[AdapterSource], spans: Sequence[_Span], matrices: Mapping[str, str], shapes: Shapes
) -> LowRank | None:
    """What the adapters add to the product of `matrices` (by module), float32; None where they add nothing."""
    firsts, outputs = dict[str, int](), 0
    for module, name in matrices.items():
        firsts[module] = outputs
        outputs += shapes[name][0]
    inputs = shapes[next(iter(matrices.values()))][1]
    down, up = torch.zeros(_ranks(spans), inputs), torch.zeros(outputs, _ranks(spans))
    found = False
    for span in spans:
        source = sources[span.adapter]
        pair = source.pair(matrices[span.module])
        if pair is not None:
            first, found = firsts[span.module], True
            down[span.first : span.past] = pair.down
            up[first : first + len(pair.up), span.first : span.past] = pair.up * source.folder.scale
    return LowRank(down, up) if found else None
