"""Expert layers compute each chosen expert for each token, whatever the routing, and wait for nothing."""

import pytest
import torch

from pagefleet_engine.kernels.grouped_gemm import choose, combine, experts_linear, sort_by_expert

pytestmark = pytest.mark.torch


def routings(tokens: int, per_token: int, experts: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(tokens)
    spread = torch.rand(tokens, experts).argsort(1)[:, :per_token]
    crowded = torch.arange(per_token).flip(0).expand(tokens, per_token)
    return {"spread": spread, "crowded": crowded}


@pytest.mark.parametrize("kind", ["spread", "crowded"])
@pytest.mark.parametrize(("tokens", "per_token", "experts"), [(1, 2, 8), (13, 3, 5), (40, 2, 4), (9, 1, 3)])
def test_each_token_goes_through_its_experts(device: str, kind: str, tokens: int, per_token: int, experts: int) -> None:
    expert_ids = routings(tokens, per_token, experts)[kind].to(device)
    hidden = torch.randn(tokens, 40, device=device)
    up = torch.randn(experts, 24, 40, device=device)
    down = torch.randn(experts, 40, 24, device=device)
    shares = torch.rand(tokens, per_token, device=device)
    routing = sort_by_expert(expert_ids, experts)
    inner = experts_linear(hidden, up, routing, gather=True)
    found = combine(experts_linear(inner, down, routing, gather=False), shares, routing)
    wanted = torch.zeros(tokens, 40, device=device)
    for choice in range(per_token):
        chosen = expert_ids[:, choice]
        layer = torch.einsum("toi,ti->to", up[chosen], hidden)
        wanted += shares[:, choice, None] * torch.einsum("toi,ti->to", down[chosen], layer)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_the_routing_sorts_rows_and_keeps_their_order(device: str) -> None:
    routing = sort_by_expert(torch.tensor([[2, 0], [0, 2], [3, 0]], device=device), 4)
    assert routing.order.tolist() == [1, 2, 5, 0, 3, 4]
    assert routing.places.tolist() == [3, 0, 1, 4, 5, 2]
    assert routing.ends.tolist() == [3, 3, 5, 6]


def test_the_sum_may_be_scaled_and_added_to_the_residual(device: str) -> None:
    routing = sort_by_expert(torch.tensor([[1, 0]], device=device), 2)
    rows = torch.tensor([[1.0, 2.0], [10.0, 20.0]], device=device)
    shares = torch.tensor([[0.5, 0.25]], device=device)
    residual = torch.tensor([[100.0, 200.0]], device=device)
    found = combine(rows, shares, routing, residual=residual, delta_scale=2.0)
    assert found.tolist() == [[110.5, 221.0]]
    assert residual.tolist() == [[110.5, 221.0]]


def test_no_tokens_are_no_work(device: str) -> None:
    routing = sort_by_expert(torch.empty(0, 2, dtype=torch.int64, device=device), 3)
    found = experts_linear(torch.empty(0, 8, device=device), torch.ones(3, 4, 8, device=device), routing, gather=True)
    assert combine(found, torch.empty(0, 2, device=device), routing).shape == (0, 4)


@pytest.mark.parametrize("rows", [1, 1000, 100_000])
def test_a_fixed_order_of_sums_takes_no_tile_of_other_instructions(rows: int) -> None:
    assert choose(rows, 128, torch.bfloat16, batch_invariant=True).rows >= 64
    assert choose(1, 128, torch.bfloat16).rows < 64


@pytest.mark.gpu
def test_a_rows_bits_are_the_same_among_any_rows(device: str) -> None:
    expert_ids = routings(3000, 8, 16)["spread"].to(device)
    hidden = torch.randn(3000, 2048, device=device).bfloat16()
    weights = (torch.randn(16, 1536, 2048, device=device) / 45).bfloat16()

    def found(tokens: int) -> torch.Tensor:
        routing = sort_by_expert(expert_ids[:tokens], 16)
        tile = choose(len(routing.order), 16, torch.bfloat16, batch_invariant=True)
        return experts_linear(hidden[:tokens], weights, routing, gather=True, tile=tile)[routing.places]

    everything = found(3000)
    for tokens in (1, 7, 64, 300):
        assert torch.equal(found(tokens), everything[: 8 * tokens]), tokens


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 8, 64, 1000])
def test_bfloat16_experts_of_a_real_size(device: str, tokens: int) -> None:
    expert_ids = routings(tokens, 8, 128)["spread"].to(device)
    hidden = torch.randn(tokens, 2048, device=device).bfloat16()
    weights = (torch.randn(128, 1536, 2048, device=device) / 45).bfloat16()
    routing = sort_by_expert(expert_ids, 128)
    found = experts_linear(hidden, weights, routing, gather=True)[routing.places].reshape(tokens, 8, -1)
    for choice in range(8):
        for expert in expert_ids[:, choice].unique().tolist()[:8]:
            mine = expert_ids[:, choice] == expert
            torch.testing.assert_close(found[mine, choice], hidden[mine] @ weights[expert].T, rtol=0.02, atol=0.02)
