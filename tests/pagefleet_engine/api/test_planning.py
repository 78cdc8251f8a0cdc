"""What the core is asked."""

from typing import Any

import pytest

from pagefleet_api.launch import SCHEDULING_POLICIES
from pagefleet_engine.api import planning
from pagefleet_engine.api.auth import Caller
from pagefleet_engine.api.dialect import Asked
from pagefleet_engine.api.errors import ApiError, ContextTooLong, InvalidRequest
from pagefleet_engine.api.generation import Plan
from pagefleet_engine.api.requests import CompletionRequest
from pagefleet_engine.steps import Sampling
from pagefleet_engine.wire import CoreReady
from tests.pagefleet_engine.api.words import Words

READY = CoreReady(
    max_model_len=100,
    max_num_seqs=4,
    block_size=16,
    num_blocks=64,
    dtype="float32",
    device="cpu",
    memory_bytes={},
    startup_phase_s={},
)


class Tokenizer(Words):
    vocab_size = 50
    eos_ids = (48, 49)


def asked(answer_tokens: int | None = None, default: int | None = None) -> Asked:
    return Asked(
        answer_tokens,
        "max_tokens",
        "prompt",
        top_logprobs=None,
        prompt_logprobs=None,
        prompts=1,
        default_answer_tokens=default,
    )


def plan(
    prompts: list[tuple[int, ...]], answer_tokens: int | None = None, default: int | None = None, **fields: Any
) -> Plan:
    request = CompletionRequest.model_validate({"prompt": "x", **fields})
    return planning.plan(
        request,
        asked(answer_tokens, default),
        prompts,
        tokenizer=Tokenizer([]),
        window_tokens=100,
        request_ids=range(10, 10 + len(prompts) * request.choices),
        fresh_seed=iter(range(1000, 2000)).__next__,
        caller=Caller("salt", "tenant"),
    )


def test_choices_run_prompt_by_prompt_with_ids_in_step() -> None:
    made = plan([(1,), (2, 3)], n=2)
    assert [submit.request_id for submit in made.submits] == [10, 11, 12, 13]
    assert [submit.prompt_token_ids for submit in made.submits] == [(1,), (1,), (2, 3), (2, 3)]
    assert [submit.prompt_token_ids for submit in made.firsts] == [(1,), (2, 3)]
    assert len(made.choices) == 4


def test_an_answer_without_a_limit_gets_the_rest_of_the_window() -> None:
    assert plan([(1,) * 30]).submits[0].max_tokens == 70
    assert plan([(1,) * 30], answer_tokens=7).submits[0].max_tokens == 7


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(30, 16), (90, 10), (99, 1)])
def test_a_default_limit_is_cut_to_the_room_that_the_prompt_leaves(prompt_tokens: int, max_tokens: int) -> None:
    assert plan([(1,) * prompt_tokens], default=16).submits[0].max_tokens == max_tokens
    planning.check_fits([(1,) * prompt_tokens], asked(default=16), READY)


@pytest.mark.parametrize(("given", "used"), [(1e-46, 0.0), (9e-6, 0.0), (0.0, 0.0), (1e-4, 1e-4), (0.7, 0.7)])
def test_a_temperature_that_leaves_no_choice_is_greedy(given: float, used: float) -> None:
    assert plan([(1,)], temperature=given).submits[0].sampling.temperature == used


@pytest.mark.parametrize("token_id", [50, 2**64, 10**4000])
def test_a_stop_token_that_is_none_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequest, match="0 to 49") as refused:
        plan([(1,)], stop_token_ids=[7, token_id])
    assert refused.value.param == "stop_token_ids"
    assert len(refused.value.message) < 300


def test_a_given_seed_is_the_first_choices_and_an_absent_one_is_fresh_for_each_prompt() -> None:
    assert plan([(1,)], seed=5).submits[0].sampling.seed == 5
    assert [submit.sampling.seed for submit in plan([(1,), (2,)]).submits] == [1000, 1001]
    assert len({submit.sampling.seed for submit in plan([(1,)], n=3, seed=5).submits}) == 3


def test_sampling_takes_the_documented_defaults() -> None:
    sampling = plan([(1,)]).submits[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.logit_bias) == (1.0, None, 1.0, ())
    assert plan([(1,)], temperature=0.0, top_k=-1).submits[0].sampling.top_k is None
    assert plan([(1,)], top_k=5).submits[0].sampling.top_k == 5
    assert sampling == Sampling(seed=1000)


def test_sampling_takes_what_was_sent() -> None:
    fields: dict[str, Any] = {"min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    fields |= {"repetition_penalty": 1.2, "top_p": 0.5, "temperature": 0.3}
    assert plan([(1,)], seed=3, **fields).submits[0].sampling == Sampling(seed=3, **fields)


def test_what_may_end_an_answer_is_barred_until_it_has_its_least_tokens() -> None:
    submits = plan([(1,), (1, 2, 3)], answer_tokens=9, min_tokens=4, stop_token_ids=[7]).submits
    assert [submit.sampling.barred_before for submit in submits] == [5, 7]
    assert submits[0].sampling.barred_token_ids == submits[0].stop_token_ids == (48, 49, 7)


@pytest.mark.parametrize(("answer_tokens", "default"), [(3, None), (None, 3)])
def test_more_least_tokens_than_an_answer_can_have_are_refused(answer_tokens: int | None, default: int | None) -> None:
    assert plan([(1,)], answer_tokens, default, min_tokens=3)
    with pytest.raises(InvalidRequest, match=r"min_tokens is 4, .* 3 tokens at most") as refused:
        plan([(1,)], answer_tokens, default, min_tokens=4)
    assert refused.value.param == "min_tokens"


@pytest.mark.parametrize(
    ("fields", "stops"),
    [
        ({}, (48, 49)),
        ({"ignore_eos": True}, ()),
        ({"stop_token_ids": [7, 49]}, (48, 49, 7)),
        ({"ignore_eos": True, "stop_token_ids": [7]}, (7,)),
    ],
)
def test_an_answer_ends_at_the_models_end_tokens_and_the_requests_own(
    fields: dict[str, Any], stops: tuple[int, ...]
) -> None:
    assert plan([(1,)], **fields).submits[0].stop_token_ids == stops


def test_logit_bias_is_by_token_id() -> None:
    assert plan([(1,)], logit_bias={"3": -100.0, "49": 1.5}).submits[0].sampling.logit_bias == ((3, -100.0), (49, 1.5))


@pytest.mark.parametrize("key", ["50", "-1", "x", "", "1.0", "٣", "9" * 5000, "03", "+3", " 3"])
def test_a_logit_bias_for_what_is_no_token_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest, match="0 to 49") as refused:
        plan([(1,)], logit_bias={key: 1.0})
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("prompt_tokens", "answer_tokens", "error", "param", "numbers"),
    [
        (0, 5, InvalidRequest, "prompt", ()),
        (100, None, ContextTooLong, "prompt", ("100",)),
        (150, 5, ContextTooLong, "prompt", ("150", "100")),
        (60, 41, ContextTooLong, "max_tokens", ("60", "41", "100")),
    ],
)
def test_a_prompt_that_can_never_run_is_refused_with_the_numbers(
    prompt_tokens: int, answer_tokens: int | None, error: type[ApiError], param: str, numbers: tuple[str, ...]
) -> None:
    with pytest.raises(error) as refused:
        planning.check_fits([(1,), (1,) * prompt_tokens], asked(answer_tokens), READY)
    assert refused.value.param == param
    assert all(number in refused.value.message for number in numbers)


def test_a_prompt_that_just_fits_passes() -> None:
    planning.check_fits([(1,) * 60], asked(40), READY)
    planning.check_fits([(1,) * 99], asked(None), READY)
    planning.check_fits([(1,) * 100], asked(0), READY)


def test_every_choice_has_the_requests_priority_and_its_tenant() -> None:
    submits = plan([(1,), (2,)], n=2, priority=-3).submits
    assert {(submit.priority, submit.tenant) for submit in submits} == {(-3, "tenant")}
    assert plan([(1,)]).submits[0].priority == 0


@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_a_priority_that_nobody_would_look_at_is_refused_with_the_way_out(policy: str) -> None:
    for none in (None, 0):
        planning.check_priority(CompletionRequest.model_validate({"prompt": "x", "priority": none}), policy)
    request = CompletionRequest.model_validate({"prompt": "x", "priority": 7})
    if policy == "priority":
        planning.check_priority(request, policy)
        return
    with pytest.raises(InvalidRequest, match=f"priority is 7, but .* is {policy}; .*policy: priority") as refused:
        planning.check_priority(request, policy)
    assert refused.value.param == "priority"
