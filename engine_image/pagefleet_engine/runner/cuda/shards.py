"""Which part of a model each rank of a tensor parallel group has. Pure, but for the slicing of tensors.

Megatron-LM's cut (Shoeybi et al. 2019): queries, keys, values, gate and up by output rows, attention's output and
down by input columns; so each of a layer's two halves ends in one sum over all ranks. Experts are cut inside each
expert. Embedding, norms and routers are whole on every rank, the head on the first alone.
"""

from dataclasses import replace
from typing import NamedTuple

import torch

from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.models.adapter_weights import AdapterSource, Pair
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.tensor_names import LAYER_PREFIX
from pagefleet_engine.models.weights import Weights
from pagefleet_engine.runner.errors import LaunchImpossible

_GATED = {"gate_proj": 0, "up_proj": 0, "w1": 0, "w3": 0, "down_proj": 1, "w2": 1}
"""Modules of an MLP or an expert, and the dimension that is its inner size."""
Span = tuple[int, int]
"""First and past-the-last index."""


class Shard(NamedTuple):
    """Rank `rank` of `world` ranks; the first is 0."""

    rank: int
    world: int


WHOLE = Shard(0, 1)


class Part(NamedTuple):
    """Some rows (`dim` 0) or columns (`dim` 1) of a tensor, in the order of `spans`."""

    dim: int
    spans: tuple[Span, ...]


def shard_config(config: ModelConfig, shard: Shard) -> ModelConfig:
    """One rank's own sizes. Raises LaunchImpossible for a model that cannot be cut into so many parts.

    Ranks after the first compute no logits: their head is tied, so that it takes no memory.
    """
    rank, world = shard
    if world == 1:
        return config
    reason = _indivisible(config, world)
    if reason is not None:
        raise LaunchImpossible(f"--tensor-parallel-size {world}: {reason}")
    experts = config.experts
    return replace(
        config,
        heads=config.heads // world,
        kv_heads=max(config.kv_heads // world, 1),
        intermediate_size=config.intermediate_size // world,
        experts=experts and replace(experts, intermediate_size=experts.intermediate_size // world),
        tied_head=config.tied_head or rank > 0,
    )


def part_of(name: str, config: ModelConfig, shard: Shard) -> Part | None:
    """A rank's part of the weight with this Hugging Face name, None for all of it; `config` is the whole model's."""
    if shard.world == 1 or not name.startswith(LAYER_PREFIX):
        return None
    module = name.split(".")[-2]
    head_size, heads, kv_heads = config.head_size, _share(config.heads, shard), _share(config.kv_heads, shard)
    queries, keys = _scaled(heads, head_size), _scaled(kv_heads, head_size)
    if module in {"q_proj", "o_proj"}:
        return Part(0 if module == "q_proj" else 1, (queries,))
    if module in {"k_proj", "v_proj"}:
        return Part(0, (keys,))
    if module == "qkv_proj":
        first_key, first_value = config.heads * head_size, (config.heads + config.kv_heads) * head_size
        return Part(0, (queries, _moved(keys, first_key), _moved(keys, first_value)))
    if module == "gate_up_proj":
        inner = _share(config.intermediate_size, shard)
        return Part(0, (inner, _moved(inner, config.intermediate_size)))
    if module in _GATED:
        in_expert = ".experts." in name and config.experts is not None
        size = config.experts.intermediate_size if in_expert and config.experts else config.intermediate_size
        return Part(_GATED[module], (_share(size, shard),))
    return None


class ShardedWeights:
    """One rank's part of another source (`models.weights.Weights`); of a file only the pages of that part are read."""

    def __init__(self, source: Weights, config: ModelConfig, shard: Shard) -> None:
        """`config` is the whole model's."""
        self._source, self._config, self._shard = source, config, shard

    def tensor(self, name: str) -> torch.Tensor:
        """The rank's part; one run of rows of a tensor on the host is a view."""
        values = self._source.tensor(name)
        part = part_of(name, self._config, self._shard)
        if part is None:
            return values
        return _cut(values, part)


class ShardedAdapter:
    """One rank's part of another source (`models.adapter_weights.AdapterSource`).

    Cut as the matrix is: by outputs is `up`, by inputs `down`; the other of the two is whole on every rank.
    """

    def __init__(self, source: AdapterSource, config: ModelConfig, shard: Shard) -> None:
        """`config` is the whole model's."""
        self._source, self._config, self._shard = source, config, shard

    @property
    def folder(self) -> AdapterFolder:
        """See `AdapterSource`."""
        return self._source.folder

    @property
    def modules(self) -> frozenset[str]:
        """See `AdapterSource`."""
        return self._source.modules

    def pair(self, name: str) -> Pair | None:
        """See `AdapterSource`."""
        pair, part = self._source.pair(name), part_of(name, self._config, self._shard)
        if pair is None or part is None:
            return pair
        return pair._replace(up=_cut(pair.up, part)) if part.dim == 0 else pair._replace(down=_cut(pair.down, part))


def _cut(values: torch.Tensor, part: Part) -> torch.Tensor:
    slices = [values.narrow(part.dim, first, end - first) for first, end in part.spans]
    if len(slices) > 1:
        return torch.cat(slices, part.dim)
    # a view on a device would keep the whole tensor there
    return slices[0] if values.device.type == "cpu" else slices[0].clone(memory_format=torch.contiguous_format)


def _indivisible(config: ModelConfig, world: int) -> str | None:
    """Why the model cannot be cut, or None."""
    if config.heads % world:
        return f"the model's {config.heads} attention heads cannot be shared out evenly"
    if config.kv_heads % world and world % config.kv_heads:
        return f"the model's {config.kv_heads} KV heads can neither be shared out nor be repeated evenly"
    if config.intermediate_size % world:
        return f"the MLP's inner size of {config.intermediate_size} cannot be shared out evenly"
    if config.experts is not None and config.experts.intermediate_size % world:
        return f"an expert's inner size of {config.experts.intermediate_size} cannot be shared out evenly"
    if config.head_norm == "all":
        return "this model's norm over all heads at once is not made for several GPUs; give 1"
    return None


def _share(count: int, shard: Shard) -> Span:
    """A rank's share of `count` things; of fewer things than ranks, neighbours have the same one."""
    if count < shard.world:
        own = shard.rank * count // shard.world
        return own, own + 1
    size = count // shard.world
    return shard.rank * size, (shard.rank + 1) * size


def _scaled(span: Span, factor: int) -> Span:
    return span[0] * factor, span[1] * factor


def _moved(span: Span, by: int) -> Span:
    return span[0] + by, span[1] + by
