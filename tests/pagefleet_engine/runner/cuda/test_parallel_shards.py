"""Ranks' parts of a model make up the whole model, head by head; what cannot be shared out is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.models.adapter_weights import Pair, products
from pagefleet_engine.models.adapters import join_adapters
from pagefleet_engine.models.config import Experts, HeadNorm, ModelConfig, NormPlacement, uniform_attention
from pagefleet_engine.models.layers import LayerWeights, read_layer, read_top
from pagefleet_engine.models.rope import Rope
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.runner.cuda.shards import Shard, ShardedAdapter, ShardedWeights, part_of, shard_config
from pagefleet_engine.runner.errors import LaunchImpossible

pytestmark = pytest.mark.torch
HIDDEN, HEAD_SIZE = 6, 2


def config_of(
    architecture: str = "llama", *, heads: int = 4, kv_heads: int = 2, inner: int = 8, qkv_bias: bool = False,
    head_norm: HeadNorm = "none", norm_placement: NormPlacement = "pre", experts: Experts | None = None,
) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        layers=2, hidden_size=HIDDEN, intermediate_size=inner, heads=heads, kv_heads=kv_heads, head_size=HEAD_SIZE,
        vocab_size=5, max_positions=16, norm_eps=1e-5, ropes=(Rope(size=HEAD_SIZE, theta=1e4),),
        attention=uniform_attention(2), query_scale=1.0, tied_head=False, bos_id=None, eos_ids=(),
        architecture=architecture, qkv_bias=qkv_bias, head_norm=head_norm, norm_placement=norm_placement,
        experts=experts,
    )  # fmt: skip


FAMILIES = {
    "llama": config_of(),
    "qwen2": config_of("qwen2", qkv_bias=True),
    "qwen3": config_of("qwen3", head_norm="head"),
    "phi3": config_of("phi3"),
    "gemma3": config_of("gemma3_text", head_norm="head", norm_placement="sandwich"),
    "mixtral": config_of("mixtral", experts=Experts(3, 2, 12, renormalise=True)),
    "qwen3_moe": config_of(
        "qwen3_moe", head_norm="head", experts=Experts(3, 2, 4, renormalise=False, dense_layers=frozenset({0}))
    ),
}


class Numbered:
    """Weights whose entries all differ."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = expected_shapes(config)

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        first = 1000.0 * list(self._shapes).index(name)
        return first + torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def layers(config: ModelConfig, shard: Shard, index: int = 1) -> LayerWeights:
    return read_layer(ShardedWeights(Numbered(config), config, shard), shard_config(config, shard), index)


def by_head(config: ModelConfig, layer: LayerWeights) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of a layer: [heads, head size, hidden size]."""
    heads = (config.heads, config.kv_heads, config.kv_heads)
    queries, keys, values = layer.qkv.unflatten(0, (-1, HEAD_SIZE)).split(heads)
    return queries, keys, values


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("index", [0, 1])
def test_the_ranks_parts_make_up_every_weight_of_the_family(family: str, index: int) -> None:
    config = FAMILIES[family]
    whole = layers(config, Shard(0, 1), index)
    parts = [layers(config, Shard(rank, 2), index) for rank in range(2)]
    cut = {"output": 1, "down": 1, "expert_down": 2}
    for name in ("output", "down", "expert_down"):
        expected = getattr(whole, name)
        if expected is not None:
            torch.testing.assert_close(torch.cat([getattr(part, name) for part in parts], cut[name]), expected)
    for name in ("gate_up", "expert_gate_up"):
        if getattr(whole, name) is not None:
            halves = [getattr(part, name).chunk(2, -2) for part in parts]
            joined = torch.cat([*(gate for gate, _ in halves), *(up for _, up in halves)], -2)
            torch.testing.assert_close(joined, getattr(whole, name))
    for name in ("input_norm", "mlp_norm", "post_mlp_norm", "query_norm", "key_norm", "router"):
        for part in parts:
            assert (getattr(part, name) is None) == (getattr(whole, name) is None)
            if getattr(whole, name) is not None:
                torch.testing.assert_close(getattr(part, name), getattr(whole, name))
    own = shard_config(config, Shard(0, 2))
    heads = [by_head(own, part) for part in parts]
    for first, second, expected in zip(*heads, by_head(config, whole), strict=True):
        torch.testing.assert_close(torch.cat([first, second]), expected)
    if whole.qkv_bias is not None:
        biases = [part.qkv_bias for part in parts if part.qkv_bias is not None]
        assert sorted(torch.cat(biases).tolist()) == sorted(whole.qkv_bias.tolist())


class RandomAdapter:
    """An adapter of every matrix that can be adapted (`AdapterSource`)."""

    def __init__(self, config: ModelConfig, rank: int) -> None:
        self.folder = AdapterFolder("every", Path("none"), rank, scale=0.5)
        self.modules = frozenset(
            module
            for index in range(config.layers)
            for modules in products(config, index).values()
            for module in modules
        )
        self._shapes, self._random = expected_shapes(config), torch.Generator().manual_seed(3)
        self._pairs = dict[str, Pair]()

    def pair(self, name: str) -> Pair:
        """Random, the same at each call."""
        rank, (outputs, inputs) = self.folder.rank, self._shapes[name]
        if name not in self._pairs:
            down, up = (torch.randn(shape, generator=self._random) for shape in ((rank, inputs), (outputs, rank)))
            self._pairs[name] = Pair(down, up)
        return self._pairs[name]


class Deltas:
    """What an adapter adds to each matrix, as if these were a model's weights."""

    def __init__(self, config: ModelConfig, adapter: RandomAdapter) -> None:
        self._numbered, self._adapter = Numbered(config), adapter

    def tensor(self, name: str) -> torch.Tensor:
        if name.removesuffix(".weight").split(".", 3)[-1] not in self._adapter.modules:
            return self._numbered.tensor(name)
        pair = self._adapter.pair(name)
        return self._adapter.folder.scale * pair.up @ pair.down


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shard", [Shard(0, 1), Shard(0, 2), Shard(1, 2)], ids=str)
def test_a_rank_s_part_of_an_adapter_is_that_of_what_it_adds(family: str, shard: Shard) -> None:
    config = FAMILIES[family]
    adapter, own = RandomAdapter(config, rank=3), shard_config(config, shard)
    joined = join_adapters(
        [ShardedAdapter(adapter, config, shard)], own, lambda low, product, index: low, torch.device("cpu")
    )
    assert joined is not None
    for index, layer in enumerate(joined.layers):
        wanted = read_layer(ShardedWeights(Deltas(config, adapter), config, shard), own, index)
        assert set(layer.products()) == set(products(config, index))
        for product, low in layer.products().items():
            assert len(joined.owners[product]) == len(low.down) == 16
            torch.testing.assert_close(low.up @ low.down, getattr(wanted, product))


@given(
    world=st.sampled_from([1, 2, 3, 4, 8]), kv_heads=st.integers(1, 8), group=st.integers(1, 8),
    inner=st.integers(1, 4), family=st.sampled_from(["llama", "phi3"]),
)  # fmt: skip
@example(world=4, kv_heads=2, group=2, inner=1, family="llama")
@example(world=8, kv_heads=4, group=6, inner=1, family="phi3")
@settings(max_examples=60, deadline=None)
def test_each_query_head_finds_its_own_kv_head_on_its_rank(
    world: int, kv_heads: int, group: int, inner: int, family: str
) -> None:
    config = config_of(family, heads=kv_heads * group, kv_heads=kv_heads, inner=inner * world)
    if config.heads % world or (kv_heads % world and world % kv_heads):
        with pytest.raises(LaunchImpossible, match="heads"):
            shard_config(config, Shard(0, world))
        return
    queries, keys, values = by_head(config, layers(config, Shard(0, 1)))
    seen = 0
    for rank in range(world):
        own = shard_config(config, Shard(rank, world))
        mine = by_head(own, layers(config, Shard(rank, world)))
        for head in range(own.heads):
            kv_head = head // (own.heads // own.kv_heads)
            assert mine[0][head].equal(queries[seen])
            assert mine[1][kv_head].equal(keys[seen // group]) and mine[2][kv_head].equal(values[seen // group])
            seen += 1
    assert seen == config.heads


@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_has_the_shape_that_the_ranks_own_config_asks_for(family: str) -> None:
    config = FAMILIES[family]
    for rank in range(2):
        weights = ShardedWeights(Numbered(config), config, Shard(rank, 2))
        for name, shape in expected_shapes(shard_config(config, Shard(rank, 2))).items():
            assert tuple(weights.tensor(name).shape) == shape, name


def test_only_the_first_rank_keeps_a_head() -> None:
    config = config_of()
    first, second = (
        read_top(ShardedWeights(Numbered(config), config, shard), shard_config(config, shard))
        for shard in (Shard(0, 2), Shard(1, 2))
    )
    assert first.head is not first.embedding and second.head is second.embedding


def test_a_group_of_one_has_the_whole_model() -> None:
    config = config_of(head_norm="all")
    assert shard_config(config, Shard(0, 1)) is config
    assert all(part_of(name, config, Shard(0, 1)) is None for name in expected_shapes(config))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (config_of(heads=9, kv_heads=3), "9 attention heads"),
        (config_of(heads=6, kv_heads=3), "3 KV heads"),
        (config_of(inner=7), "inner size of 7"),
        (config_of("mixtral", experts=Experts(2, 1, 5, renormalise=True)), "expert's inner size of 5"),
        (config_of("olmo2", head_norm="all", norm_placement="post"), "norm over all heads"),
    ],
)
def test_a_model_that_cannot_be_shared_out_is_refused_with_the_reason(config: ModelConfig, reason: str) -> None:
    with pytest.raises(LaunchImpossible, match=f"--tensor-parallel-size 2: .*{reason}"):
        shard_config(config, Shard(1, 2))
