"""What adapters take of a GPU's memory."""

from typing import Any

import pytest

from pagefleet_api.sizing.adapters import AdapterFacts, adapters_bytes
from pagefleet_api.sizing.fields import ConfigUnusable
from pagefleet_api.sizing.fit import Demand, fit_cpu
from pagefleet_api.sizing.model import read_shape
from pagefleet_api.sizing.weights import of_config
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_api.sizing.test_fit import fitted

LLAMA = read_shape(configs.LLAMA_8B)
OF_ONE_RANK = 32 * (26_624 + 55_296)
"""Rows and columns of all matrices of Llama 3.1 8B, as PEFT counts them for `all-linear`: 2,621,440."""


@pytest.mark.parametrize(
    ("runtime", "ranks", "counted"),
    [
        ("tgi", (8, 64), 72),
        ("sglang", (8, 64), 3 * 64),
        ("vllm", (8, 64), 2 * 64),
        ("vllm", (8,), 16),
        ("vllm", (65, 16), 2 * 128),
        ("vllm", (), 0),
    ],
)
def test_each_engine_takes_the_room_that_it_sets_aside(runtime: str, ranks: tuple[int, ...], counted: int) -> None:
    assert adapters_bytes(LLAMA, ranks, runtime, 2) == counted * OF_ONE_RANK * 2


def test_our_engine_has_rows_of_every_matrix_that_it_joins_to_one() -> None:
    query, keys, hidden, inner = 4096, 1024, 4096, 14_336
    joined = 3 * (hidden + query + 2 * keys) + (query + hidden) + 2 * (hidden + 2 * inner) + (inner + hidden)
    assert adapters_bytes(LLAMA, (8, 64), "pagefleet", 2) == 72 * 32 * joined * 2


def test_what_adapters_take_is_missing_from_the_cache() -> None:
    plain = fitted(configs.LLAMA_8B, demand=Demand(runtime="vllm", max_model_len=4096))
    two = fitted(configs.LLAMA_8B, demand=Demand(runtime="vllm", max_model_len=4096, adapter_ranks=(64, 64)))
    assert plain.kv_bytes - two.kv_bytes == two.adapters_bytes == 128 * OF_ONE_RANK * 2
    assert "weights 15.0 GiB, adapters 0.6 GiB, a step" in two.breakdown
    half = Demand(runtime="vllm", max_model_len=4096, pipeline=2, adapter_ranks=(64, 64))
    assert fitted(configs.LLAMA_8B, demand=half).adapters_bytes == two.adapters_bytes // 2


def test_a_containers_memory_has_room_for_them() -> None:
    demand = Demand(device="cpu", max_model_len=4096, adapter_ranks=(64,))
    found = fit_cpu(LLAMA, of_config(LLAMA, 4), demand, None)
    assert found.adapters_bytes == adapters_bytes(LLAMA, (64,), "pagefleet", 4)
    assert found.budget_bytes - fit_cpu(LLAMA, of_config(LLAMA, 4), Demand(device="cpu"), None).budget_bytes == (
        found.adapters_bytes
    )


@pytest.mark.parametrize("config", [{}, {"r": 0}, {"r": True}, {"r": "8"}, {"r": 513}, {"r": 10**400}])
def test_a_file_without_a_rank_is_named(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigUnusable, match=r"adapter_config\.json: r is .*; a whole number from 1 to 512 is needed"):
        AdapterFacts.read(config)
    assert AdapterFacts.read({"r": 512}).rank == 512
