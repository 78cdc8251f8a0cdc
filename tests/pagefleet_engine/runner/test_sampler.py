"""How next tokens are chosen from logits."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from pagefleet_engine.runner import sampler
from pagefleet_engine.runner.sampler import Choice, Draw, choose, token_logprobs
from pagefleet_engine.steps import Sampling

pytestmark = pytest.mark.torch
CHI_SQUARE_7 = 24.32
"""Chi-square with 7 degrees of freedom, p = 0.001."""
LOGITS = [2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0]


def tokens(logits: list[list[float]], draws: list[Draw]) -> list[int | None]:
    return [choice.token_id for choice in choose(torch.tensor(logits), draws)]


def many(sampling_options: Mapping[str, object], count: int, logits: list[float] = LOGITS) -> list[int]:
    """Tokens at `count` positions of one sequence."""
    sampling = Sampling(seed=9, **sampling_options)  # type: ignore[arg-type]
    drawn = tokens([logits] * count, [Draw(sampling, position) for position in range(count)])
    return [token for token in drawn if token is not None]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 8),
        ({"temperature": 0.5}, 8),
        ({"temperature": 3.0}, 8),
        ({"top_k": 3}, 3),
        ({"top_p": 0.7}, 3),
        ({"top_k": 5, "top_p": 0.7}, 3),
        ({"top_k": 2, "top_p": 0.99}, 2),
        ({"min_p": 0.3}, 3),
        ({"min_p": 0.1}, 5),
        ({"min_p": 1.0}, 1),
        ({"min_p": 0.1, "temperature": 2.0}, 7),
        ({"min_p": 0.1, "top_k": 4}, 4),
        ({"min_p": 0.3, "top_p": 0.99}, 3),
    ],
)
def test_tokens_follow_the_distribution_that_the_options_describe(options: dict[str, float], kept: int) -> None:
    weights = np.exp(np.array(LOGITS) / options.get("temperature", 1.0))
    weights[kept:] = 0
    expected = 8000 * weights / weights.sum()
    counts = np.bincount(many(options, 8000), minlength=8)
    assert counts[kept:].sum() == 0
    assert ((counts[:kept] - expected[:kept]) ** 2 / expected[:kept]).sum() < CHI_SQUARE_7


def test_temperature_zero_takes_the_likeliest_token() -> None:
    assert many({"temperature": 0.0}, 50) == [0] * 50


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}, {"top_p": 0.0}])
def test_the_narrowest_cuts_leave_the_likeliest_token(options: dict[str, object]) -> None:
    assert many(options, 50) == [0] * 50


def test_cuts_that_keep_everything_change_nothing() -> None:
    plain = many({}, 500)
    for options in ({"top_k": 8}, {"top_k": 1000}, {"top_k": 8, "top_p": 1.0}, {"top_p": 1 - 1e-12}):
        assert many(dict(options), 500) == plain


def test_a_wide_top_p_looks_past_the_first_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = [index * -1e-4 for index in range(100)]
    expected = [many(options, 300, flat) for options in ({"top_p": 0.95}, {"top_p": 0.02})]
    monkeypatch.setattr(sampler, "FIRST_CANDIDATES", 5)
    assert [many(options, 300, flat) for options in ({"top_p": 0.95}, {"top_p": 0.02})] == expected
    assert len(set(expected[0])) > 80
    assert len(set(expected[1])) <= 3


def test_mixed_cuts_in_one_batch_do_not_touch_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "FIRST_CANDIDATES", 3)
    options: list[dict[str, object]] = [
        {"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.3}, {"top_k": 7, "top_p": 0.99}, {"temperature": 2.0},
        {"top_p": 0.999}, {"top_k": 4},
    ]  # fmt: skip
    draws = [Draw(Sampling(seed=i, **chosen), 5 + i) for i, chosen in enumerate(options)]  # type: ignore[arg-type]
    alone = [tokens([LOGITS], [draw])[0] for draw in draws]
    assert tokens([LOGITS] * len(draws), draws) == alone
    assert tokens([LOGITS] * len(draws), draws[::-1]) == alone[::-1]


def test_which_of_equal_logits_are_kept_does_not_depend_on_the_batch() -> None:
    equal = [1.0] * 300
    draws = [
        Draw(Sampling(seed=seed, top_k=k, top_p=p), 3)
        for seed in range(20)
        for k, p in ((7, 0.8), (40, 1), (None, 0.3))
    ]
    alone = [tokens([equal], [draw])[0] for draw in draws]
    assert tokens([equal] * len(draws), draws) == alone


def test_the_same_seed_and_position_give_the_same_token_and_others_do_not() -> None:
    first = many({}, 200)
    assert many({}, 200) == first
    other = tokens([LOGITS] * 200, [Draw(Sampling(seed=10), position) for position in range(200)])
    assert other != first


def test_logit_bias_of_a_hundred_forces_and_forbids() -> None:
    assert many({"logit_bias": ((7, 100.0),)}, 100) == [7] * 100
    assert 0 not in many({"logit_bias": ((0, -100.0),)}, 300)
    assert many({"logit_bias": ((0, -100.0),), "temperature": 0.0}, 2) == [1, 1]


@pytest.mark.parametrize("bad", [[math.nan] * 8, [0.0] * 7 + [math.nan], [math.inf] + [0.0] * 7, [-math.inf] * 8])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_p": 0.5}])
def test_a_row_that_is_no_numbers_gets_no_token_and_spares_the_others(
    bad: list[float], options: dict[str, object]
) -> None:
    draw = Draw(Sampling(seed=4, top_logprobs=2, **options), 3)  # type: ignore[arg-type]
    good = choose(torch.tensor([LOGITS]), [draw])[0]
    assert choose(torch.tensor([LOGITS, bad, LOGITS]), [draw] * 3) == [good, Choice(None, None), good]


def test_a_token_forbidden_by_minus_infinity_is_never_drawn() -> None:
    assert 0 not in many({}, 500, [-math.inf, *LOGITS[1:]])


def test_logprobs_are_those_before_temperature_and_cuts_and_after_bias() -> None:
    sampling = Sampling(seed=1, temperature=0.2, top_k=2, logit_bias=((3, 2.0),), top_logprobs=3)
    [choice] = choose(torch.tensor([LOGITS]), [Draw(sampling, 0)])
    biased = np.array(LOGITS)
    biased[3] += 2
    exact = biased - np.log(np.exp(biased).sum())
    assert choice.logprobs is not None
    assert [token for token, _ in choice.logprobs.top] == [3, 0, 1]
    assert [value for _, value in choice.logprobs.top] == pytest.approx(exact[[3, 0, 1]], abs=1e-5)
    assert choice.logprobs.token_id == choice.token_id
    assert choice.logprobs.logprob == pytest.approx(exact[choice.logprobs.token_id], abs=1e-5)


def test_logprobs_are_only_made_where_asked_and_as_many_as_asked() -> None:
    asked = [None, 0, 2, 100]
    draws = [Draw(Sampling(seed=1, temperature=0.0, top_logprobs=count), 0) for count in asked]
    found = [choice.logprobs for choice in choose(torch.tensor([LOGITS] * 4), draws)]
    assert [None if entry is None else len(entry.top) for entry in found] == [None, 0, 2, 8]


def test_which_of_equal_tokens_are_told_does_not_depend_on_the_batch() -> None:
    equal = [float(index % 3) for index in range(60)]
    draws = [Draw(Sampling(seed=1, temperature=0.0, top_logprobs=count), 0) for count in (3, 20, 1, 3)]
    alone = [choose(torch.tensor([equal]), [draw])[0] for draw in draws]
    assert choose(torch.tensor([equal] * len(draws)), draws) == alone


def test_token_logprobs_of_given_tokens() -> None:
    [entry] = token_logprobs(torch.tensor([[0.0, 0.0, math.log(2.0)]]), [1], 1)
    assert entry.logprob == pytest.approx(math.log(0.25))
    assert [token for token, _ in entry.top] == [2]
    assert entry.top[0][1] == pytest.approx(math.log(0.5))
