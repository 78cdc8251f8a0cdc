"""A step is planned while the one before is computed, and nobody can tell."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.scheduler.policies import POLICIES
from pagefleet_engine.scheduler.seats import RESERVE_AFTER_PREEMPTIONS
from pagefleet_engine.steps import Sampling
from pagefleet_engine.wire import Submit
from tests.pagefleet_engine.core.chain_runner import expected_answer, expected_prompt_logprobs
from tests.pagefleet_engine.core.engine_rig import Rig, submit


def prompt(number: int, tokens: int = 10) -> list[int]:
    return [(number * 37 + index) % 997 for index in range(tokens)]


def test_a_decode_is_planned_before_its_token_is_known() -> None:
    rig = Rig(lookahead=True)
    rig.submit(submit(1, prompt(1), 4))
    rig.run()
    assert [(step.token_ids, step.start) for plan in rig.plans[1:] for step in plan.sequences] == [
        (None, 10),
        (None, 11),
        (None, 12),
    ]
    assert rig.tokens[1] == expected_answer(prompt(1), 4)


@pytest.mark.parametrize("max_tokens", [0, 1, 2, 7])
def test_nothing_is_planned_past_the_last_token(max_tokens: int) -> None:
    rig = Rig(lookahead=True)
    rig.submit(submit(1, prompt(1), max_tokens, prompt_logprobs=0))
    rig.run()
    assert len(rig.plans) == max(max_tokens, 1)
    assert rig.ends[1].finish_reason == "length"
    assert rig.scored[1] == expected_prompt_logprobs(prompt(1))


def test_what_is_computed_after_a_stop_token_means_nothing_and_its_blocks_have_new_owners() -> None:
    answer = expected_answer(prompt(1), 40)
    rig = Rig(num_blocks=4, max_num_batched_tokens=100, lookahead=True)
    rig.submit(submit(1, prompt(1), 40, stop=(answer[7],)), submit(2, prompt(2, 40), 20))
    rig.run()
    ends = [index for index, plan in enumerate(rig.plans) for step in plan.sequences if step.sequence_id == 1]
    assert len(ends) == answer.index(answer[7]) + 2, "one step more than tokens"
    assert rig.tokens[1] == answer[: answer.index(answer[7]) + 1]
    assert rig.tokens[2] == expected_answer(prompt(2, 40), 20)


def test_a_token_that_comes_after_its_sequence_has_lost_its_seat_counts() -> None:
    rig = Rig(num_blocks=6, lookahead=True)
    rig.submit(submit(1, prompt(1, 30), 50), submit(2, prompt(2, 20), 40, prompt_logprobs=1))
    rig.run()
    assert rig.preemptions[2] >= 1
    assert rig.tokens[2] == expected_answer(prompt(2, 20), 40)
    assert rig.scored[2] == expected_prompt_logprobs(prompt(2, 20))


@pytest.mark.parametrize("policy", POLICIES)
def test_who_gives_way_takes_no_seat_before_its_token_in_flight_has_come(policy: str) -> None:
    """Each computed the prompt itself, so the prefix cache gives whoever lost its blocks those of another at once."""
    rig = Rig(num_blocks=22, max_num_batched_tokens=1000, lookahead=True, policy=policy, in_order=False)
    rig.submit(*(submit(number, prompt(0, 159), 40, seed=number) for number in range(3)))
    rig.run()
    assert rig.scheduler.snapshot().preemptions_total > 0
    for number in range(3):
        assert rig.tokens[number] == expected_answer(prompt(0, 159), 40, seed=number)


def test_a_last_token_that_comes_after_its_sequence_has_lost_its_seat_ends_it() -> None:
    # Both fill their blocks at the same time; the later one's last token is in flight when the other needs one more.
    rig = Rig(num_blocks=2, lookahead=True)
    rig.submit(submit(1, prompt(1, 10), 20), submit(2, prompt(2, 10), 7))
    rig.scheduler._seats._watermark_blocks = -1
    rig.run()
    assert rig.scheduler.snapshot().preemptions_total == 1
    assert rig.preemptions[2] == 0, "it was never seated again"
    assert rig.tokens[2] == expected_answer(prompt(2, 10), 7)
    assert rig.tokens[1] == expected_answer(prompt(1, 10), 20)


def test_a_failure_that_comes_after_its_sequence_has_lost_its_seat_ends_it() -> None:
    rig = Rig(num_blocks=2, lookahead=True)
    rig.submit(submit(1, prompt(1, 10), 20), submit(2, prompt(2, 10), 20))
    rig.scheduler._seats._watermark_blocks = -1
    while rig.scheduler.snapshot().preemptions_total == 0:
        rig.runner.failing = {2} if rig.flight and rig.flight.plan.sequences[0].start >= 14 else set()
        rig.step()
    rig.run()
    assert rig.ends[2].finish_reason == "error"
    assert rig.tokens[1] == expected_answer(prompt(1, 10), 20)


@pytest.mark.parametrize("lookahead", [False, True])
def test_preempted_answers_lose_no_token_whatever_they_ask_for(lookahead: bool) -> None:
    rig = Rig(num_blocks=30, lookahead=lookahead)
    scored = {number: 0 if number % 3 == 0 else None for number in range(8)}
    rig.submit(*(submit(n, prompt(n), 200, seed=n % 4, prompt_logprobs=scored[n]) for n in range(8)))
    rig.run()
    assert rig.scheduler.snapshot().preemptions_total > 0
    for number in range(8):
        assert rig.tokens[number] == expected_answer(prompt(number), 200, seed=number % 4)
        assert len(rig.tokens[number]) == 200
        assert rig.scored[number] == ([] if scored[number] is None else expected_prompt_logprobs(prompt(number)))
    assert max(rig.preemptions.values()) <= RESERVE_AFTER_PREEMPTIONS


@pytest.mark.parametrize("lookahead", [False, True])
def test_resumed_prompts_keep_their_order(lookahead: bool) -> None:
    rig = Rig(num_blocks=24, max_num_seqs=16, max_num_batched_tokens=48, lookahead=lookahead)
    rig.submit(*(submit(number, prompt(number, 20 + number), 100) for number in range(16)))
    rig.run()
    assert rig.scheduler.snapshot().preemptions_total > 0
    assert max(rig.preemptions.values()) <= RESERVE_AFTER_PREEMPTIONS
    assert list(rig.ends) == sorted(rig.ends)


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("flying", [False, True])
def test_an_abort_in_any_state_given_twice_ends_a_request_once(steps: int, flying: bool) -> None:
    rig = Rig(num_blocks=6, max_num_seqs=3, max_num_batched_tokens=16, lookahead=True)
    rig.submit(*(submit(number, prompt(number, 25), 30) for number in range(4)))
    for _ in range(steps):
        rig.step()

    def abort() -> None:
        rig.scheduler.abort([0, 1, 0])
        rig.scheduler.abort([1, 3])

    if flying:
        rig.step(abort)
    else:
        abort()
    rig.run()
    assert {number: rig.ends[number].finish_reason for number in (0, 1, 3)} == dict.fromkeys((0, 1, 3), "abort")
    assert rig.tokens[2] == expected_answer(prompt(2, 25), 30)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_steps_that_are_let_go_cost_nobody_a_token_and_are_planned_by_name(every: int) -> None:
    rig = Rig(num_blocks=14, max_num_batched_tokens=20, lookahead=True)
    rig.submit(*(submit(number, prompt(number, 30), 20, prompt_logprobs=0) for number in range(6)))
    while rig.scheduler.has_work:
        rig.fault()
        planned = len(rig.plans)
        for _ in range(every):
            rig.step()
        assert all(step.token_ids is not None for step in rig.plans[planned].sequences)
    for number in range(6):
        assert rig.tokens[number] == expected_answer(prompt(number, 30), 20)
        assert rig.scored[number] == expected_prompt_logprobs(prompt(number, 30))


def test_histories_are_told_again_once_steps_were_let_go() -> None:
    rig = Rig(lookahead=True)
    penalised = Sampling(seed=0, temperature=0.0, presence_penalty=0.5)
    request = Submit(request_id=1, prompt_token_ids=(1, 2, 3), max_tokens=9, sampling=penalised)
    rig.submit(request)
    for _ in range(3):
        rig.step()
    rig.fault()
    rig.run()
    told = [step.history for plan in rig.plans for step in plan.sequences if step.history is not None]
    assert [len(history.token_ids) for history in told] == [3, 6]
    assert all(history.prompt_tokens == 3 for history in told)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 40), st.sampled_from([None, 0, 2]), st.lists(st.integers(0, 996))),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([7, 9, 20]),
    st.sampled_from([3, 16, 128]),
)
def test_all_answers_are_those_of_one_step_at_a_time(
    wishes: list[tuple[int, int, int | None, list[int]]], num_blocks: int, max_num_batched_tokens: int
) -> None:
    told = []
    for lookahead in (False, True):
        rig = Rig(num_blocks, max_num_batched_tokens=max_num_batched_tokens, lookahead=lookahead)
        for number, (tokens, most, scored, stop) in enumerate(wishes):
            rig.submit(
                submit(number, prompt(number, tokens), most, prompt_logprobs=scored, stop=tuple(stop), seed=number % 3)
            )
        rig.run()
        reasons = {number: end.finish_reason for number, end in sorted(rig.ends.items())}
        told.append((dict(sorted(rig.tokens.items())), dict(sorted(rig.scored.items())), reasons))
    assert told[0] == told[1]
