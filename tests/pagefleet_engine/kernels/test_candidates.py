"""Cuts, penalties and log-probabilities agree with what plain Python computes for one row."""

import math

import pytest
import torch

from pagefleet_engine.kernels.candidates import penalise_, restricted_sample, token_logprobs
from pagefleet_engine.kernels.cuts import restrict
from pagefleet_engine.kernels.sampling import sample

pytestmark = pytest.mark.torch

CUTS = [
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (3, 1.0, 0.0),
    (0, 0.5, 0.0),
    (0, 0.9, 0.0),
    (4, 0.7, 0.0),
    (0, 1.0, 0.2),
    (5, 0.8, 0.1),
]


def kept_ids(row: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    weights = {token: math.exp((row[token] - row[order[0]]) / max(temperature, 1e-5)) for token in order}
    order = [token for token in order if weights[token] >= min_p][: top_k or len(row)]
    total, reached = sum(weights[token] for token in order), 0.0
    kept: set[int] = set()
    for token in order:
        if not kept or top_p >= 1 or reached < top_p * total * (1 - 1e-6):
            kept.add(token)
        reached += weights[token]
    return kept


def tensors(cuts: list[tuple[int, float, float]], device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    top_k, top_p, min_p = zip(*cuts, strict=True)
    return (
        torch.tensor(top_k, dtype=torch.int32, device=device),
        torch.tensor(top_p, device=device),
        torch.tensor(min_p, device=device),
    )


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_rows_keep_what_their_own_cuts_allow(device: str, temperature: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(len(CUTS), 23, device=device).round(decimals=1)  # has equal logits
    found = restrict(logits, torch.full((len(CUTS),), temperature, device=device), *tensors(CUTS, device))
    for row, cut in enumerate(CUTS):
        kept = set(found[row].isfinite().nonzero()[:, 0].tolist())
        assert kept == kept_ids(logits[row].tolist(), temperature, *cut)
        assert all(found[row, token] == logits[row, token] for token in kept)


def test_many_rows_are_cut_as_each_alone(device: str) -> None:
    torch.manual_seed(2)
    logits = torch.randn(len(CUTS), 50, device=device)
    heat, cuts = torch.ones(len(CUTS), device=device), tensors(CUTS, device)
    together = restrict(logits, heat, *cuts)
    for row in range(len(CUTS)):
        alone = restrict(logits[row : row + 1], heat[:1], *(cut[row : row + 1] for cut in cuts))
        assert torch.equal(alone[0], together[row])


def test_equal_logits_are_kept_in_order_across_a_programs_passes(device: str) -> None:
    logits = torch.zeros(2, 9000, device=device)
    logits[:, 8999] = 1.0
    found = restrict(logits, torch.ones(2, device=device), *tensors([(8500, 1.0, 0.0), (0, 0.5, 0.0)], device))
    assert found[0].isfinite().nonzero()[:, 0].tolist() == [*range(8499), 8999]
    half = math.ceil(0.5 * (1 - 1e-6) * (8999 + math.e) - math.e)
    kept = found[1].isfinite().nonzero()[:, 0].tolist()
    assert kept == [*range(len(kept) - 1), 8999]
    assert abs(len(kept) - 1 - half) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("cut", [(50, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.999, 0.0), (100, 0.8, 0.0), (0, 1.0, 0.05)])
def test_a_whole_vocabulary_is_cut_as_by_sorting(device: str, cut: tuple[int, float, float]) -> None:
    torch.manual_seed(4)
    logits = (torch.randn(40, 128256, device=device) * 3).bfloat16().float()
    found = restrict(logits, torch.full((40,), 0.8, device=device), *tensors([cut] * 40, device)).isfinite()
    ordered, order = logits.sort(descending=True, stable=True)
    weights = ((ordered - ordered[:, :1]).double() / 0.8).exp()
    weights[:, cut[0] or 128256 :] = 0.0
    weights[weights < cut[2]] = 0.0
    before = weights.cumsum(-1) - weights
    goal = cut[1] * weights.sum(-1, keepdim=True) if cut[1] < 1 else torch.inf
    wanted = torch.zeros_like(found).scatter_(1, order, (weights > 0) & (before < goal))
    by_token = torch.zeros_like(weights).scatter_(1, order, weights)
    wrong = (by_token * (found != wanted)).sum(-1) / weights.sum(-1)
    assert float(wrong.max()) <= (1e-5 if cut[1] < 1 else 0.0)


def test_nothing_cut_draws_the_same_token_as_the_plain_sampler(device: str) -> None:
    torch.manual_seed(3)
    logits = torch.randn(8, 3000, device=device)
    heat = torch.tensor([0.0, 0.5, 1.0, 2.0] * 2, device=device)
    seeds = torch.arange(8, device=device)
    positions = torch.arange(8, device=device, dtype=torch.int32)
    plain = torch.empty(8, dtype=torch.int32, device=device)
    sample(logits, heat, seeds, positions, plain)
    found = restricted_sample(logits, heat, *tensors([(0, 1.0, 0.0)] * 8, device), seeds, positions)
    assert torch.equal(found, plain)


def test_only_kept_tokens_are_drawn(device: str) -> None:
    logits = torch.randn(1, 40, device=device).expand(15, 40).contiguous()
    cuts, heat = tensors([(5, 0.9, 0.0)] * 15, device), torch.full((15,), 1.5, device=device)
    positions = torch.zeros(15, dtype=torch.int32, device=device)
    found = restricted_sample(logits, heat, *cuts, torch.arange(15, device=device), positions)
    allowed = kept_ids(logits[0].tolist(), 1.5, 5, 0.9, 0.0)
    assert set(found.tolist()) <= allowed
    assert len(set(found.tolist())) > 1


def test_a_row_that_is_no_number_gives_no_token(device: str) -> None:
    logits = torch.tensor([[math.nan, 1.0, 2.0], [-math.inf] * 3, [0.0, 1.0, 0.0]], device=device)
    ones = torch.ones(3, device=device)
    found = restricted_sample(
        logits, ones, *tensors([(2, 0.9, 0.1)] * 3, device), torch.arange(3, device=device), ones.int()
    )
    assert found.tolist()[:2] == [3, 3]
    assert found.tolist()[2] in {0, 1, 2}


def test_no_rows_are_no_tokens(device: str) -> None:
    nothing = torch.empty(0, device=device)
    found = restricted_sample(
        torch.empty(0, 5, device=device), nothing, nothing.int(), nothing, nothing, nothing.long(), nothing.int()
    )
    assert found.shape == (0,)


def test_penalties_change_the_tokens_that_came_before(device: str) -> None:
    logits = torch.tensor([[2.0, -2.0, 3.0, 1.0], [2.0, -2.0, 3.0, 1.0]], device=device)
    counts = torch.tensor([[0, 0, 2, 0], [0, 0, 2, 0]], device=device, dtype=torch.int32)
    prompt = torch.tensor([[True, True, False, False]] * 2, device=device)
    repetition, frequency, presence = (
        torch.tensor(values, device=device) for values in ([2.0, 1.0], [0.5, 0.0], [0.25, 0.0])
    )
    penalise_(logits, counts, prompt, repetition, frequency, presence)
    assert logits.tolist() == [[1.0, -4.0, 3.0 / 2 - 2 * 0.5 - 0.25, 1.0], [2.0, -2.0, 3.0, 1.0]]


def test_logprobs_are_of_the_whole_softmax(device: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 1.0]], device=device)
    found = token_logprobs(logits.bfloat16(), torch.tensor([1, 2], dtype=torch.int32, device=device), 2)
    wanted = logits.log_softmax(-1)
    assert torch.equal(found.chosen, torch.stack([wanted[0, 1], wanted[1, 2]]))
    assert found.top_tokens[0].tolist() == [2, 1]
    assert torch.equal(found.top[0], wanted[0, [2, 1]])
