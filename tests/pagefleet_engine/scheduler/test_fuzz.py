"""What must hold for any traffic: right answers, no leak, no stuck request, budgets kept."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.kv import table
from pagefleet_engine.scheduler.policies import POLICIES
from pagefleet_engine.steps import execute
from pagefleet_engine.wire import Submit
from tests.pagefleet_engine.core.chain_runner import expected_answer, expected_prompt_logprobs
from tests.pagefleet_engine.core.engine_rig import Rig, submit
from tests.pagefleet_engine.operations import OPERATIONS


@pytest.fixture(autouse=True)
def short_prompts_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST_AWAITED_TOKENS", 16)


PREFIXES = [tuple(range(base, base + 40)) for base in (0, 100, 200)]


def random_request(dice: random.Random, request_id: int, most_tokens: int) -> Submit:
    prefix = dice.choice(PREFIXES)[: dice.choice((0, 1, 15, 16, 17, 32, 40))]
    prompt = (*prefix, *(dice.randrange(997) for _ in range(dice.choice((1, 2, 14, 15, 16, 17, 30)))))
    return submit(
        request_id,
        prompt[: most_tokens // 2],
        min(dice.choice((0, 1, 2, 15, 16, 17, 33, 64)), most_tokens // 2),
        stop=tuple(dice.randrange(997) for _ in range(dice.choice((0, 0, 20)))),
        prompt_logprobs=dice.choice((None, None, None, 0, 2)),
        salt=dice.choice(("", "", "other")),
        seed=dice.randrange(3),
        priority=dice.randrange(-1, 2),
        tenant=dice.choice("abc"),
        adapter=dice.choice((None, None, 0, 1)),
    )


def assert_harmless(rig: Rig) -> None:
    plan = rig.scheduler.harmless_step()
    if plan is None:
        assert rig.scheduler.snapshot().blocks_used == rig.runner.num_blocks
    else:
        execute(rig.runner, plan)


def assert_right(rig: Rig, request: Submit) -> None:
    end = rig.ends[request.request_id]
    told = rig.tokens.get(request.request_id, [])
    prompt = request.prompt_token_ids
    sampling, adapter = request.sampling, request.adapter
    wanted = expected_answer(prompt, request.max_tokens, sampling.seed, request.stop_token_ids, adapter)
    scored = rig.scored.get(request.request_id, [])
    wanted_scores = [] if request.prompt_logprobs is None else expected_prompt_logprobs(prompt, adapter)
    if end.finish_reason in {"abort", "error"}:
        assert told == wanted[: len(told)]
        assert scored == wanted_scores[: len(scored)]
        return
    assert told == wanted
    assert scored == wanted_scores
    stopped = bool(told) and told[-1] in request.stop_token_ids
    assert end.finish_reason == ("stop" if stopped else "length")
    assert request.request_id in rig.cached


def most_steps(requests: Sequence[Submit]) -> int:
    """At one token a step, each of at most 128 a request, and computed up to four times."""
    return 4 * 128 * (len(requests) + 1)


def play(dice: random.Random, operations: int, *, lookahead: bool = False) -> Rig:
    num_blocks = dice.choice((5, 8, 16, 40))
    rig = Rig(
        num_blocks,
        max_num_seqs=dice.choice((1, 3, 8)),
        max_num_batched_tokens=dice.choice((1, 7, 16, 33, 128)),
        max_model_len=dice.choice((48, 4096)),
        lookahead=lookahead,
        in_order=False,
        policy=dice.choice(tuple(POLICIES)),
    )
    most_tokens = min(num_blocks * 16, 48 if dice.random() < 0.3 else 128)
    requests: list[Submit] = []
    for _ in range(operations):
        what = dice.random()
        if what < 0.25:
            requests.append(random_request(dice, len(requests), most_tokens))
            rig.submit(requests[-1])
        elif what < 0.3:
            rig.scheduler.abort(dice.choices(range(len(requests) + 2), k=dice.choice((1, 3))))
        elif what < 0.35:
            # Abort and failure while a step is being computed.
            rig.runner.failing = set(dice.sample(range(len(requests)), k=min(len(requests), dice.choice((0, 0, 1)))))
            aborted = dice.choices(range(len(requests) + 1), k=2)
            rig.step(lambda aborted=aborted: rig.scheduler.abort(aborted), spoil=dice.random() < 0.2)  # type: ignore[misc]
            rig.runner.failing = set()
            if dice.random() < 0.2 and rig.flight is None:
                assert_harmless(rig)
        elif what < 0.38:
            aborted = dice.choices(range(len(requests) + 1), k=dice.choice((0, 2)))
            rig.fault(lambda aborted=aborted: rig.scheduler.abort(aborted))  # type: ignore[misc]
        else:
            rig.step()
        rig.verify()
    rig.run(most_steps(requests))
    assert len(rig.ends) == len(requests)
    for request in requests:
        assert_right(rig, request)
    return rig


def squeeze(dice: random.Random, operations: int, *, lookahead: bool = False, policy: str = "fcfs") -> Rig:
    """Many long answers in a pool that holds few of them, so that preemption never stops."""
    rig = Rig(
        dice.choice((12, 20)),
        max_num_seqs=8,
        max_num_batched_tokens=dice.choice((9, 40, 300)),
        lookahead=lookahead,
        in_order=False,
        policy=policy,
    )
    requests: list[Submit] = []
    for _ in range(operations):
        if dice.random() < 0.05:
            prompt = (*PREFIXES[0][: dice.choice((0, 32))], *(dice.randrange(997) for _ in range(5)))
            scored = dice.choice((None, None, 1))
            number = len(requests)
            requests.append(
                submit(
                    number, prompt, dice.randrange(30, 150), prompt_logprobs=scored, seed=number,
                    priority=dice.randrange(3), tenant=dice.choice("ab"), adapter=dice.choice((None, 0, 1)),
                )
            )  # fmt: skip
            rig.submit(requests[-1])
        rig.step()
    rig.run()
    for request in requests:
        assert_right(rig, request)
    return rig


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_random_operations_leave_every_answer_right_and_no_block_lost(seed: int, lookahead: bool) -> None:
    play(random.Random(seed), OPERATIONS // 20, lookahead=lookahead)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.booleans())
def test_short_random_histories_hold_every_promise(seed: int, operations: int, lookahead: bool) -> None:
    play(random.Random(seed), operations, lookahead=lookahead)


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize(("seed", "policy"), tuple(enumerate(POLICIES)))
def test_answers_are_the_same_in_a_pool_that_preempts_all_the_time(seed: int, policy: str, lookahead: bool) -> None:
    rig = squeeze(random.Random(seed), OPERATIONS // 10, lookahead=lookahead, policy=policy)
    assert rig.scheduler.snapshot().preemptions_total > 10
    if policy != "priority":  # where better ones come later, nobody can be sure of a seat
        assert max(rig.preemptions.values()) <= 3


@pytest.mark.parametrize("lookahead", [False, True])
def test_a_long_life_of_the_engine_leaves_nothing_behind(lookahead: bool) -> None:
    rig = play(random.Random(77), OPERATIONS // 4, lookahead=lookahead)
    assert rig.scheduler.snapshot().waiting == 0
