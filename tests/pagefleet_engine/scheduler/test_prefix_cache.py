"""What later requests save, and what they must not be told."""

import pytest

from pagefleet_engine.kv.table import LEAST_AWAITED_TOKENS
from pagefleet_engine.scheduler.waiting import MOST_PASSED
from tests.pagefleet_engine.core.chain_runner import expected_answer, expected_prompt_logprobs
from tests.pagefleet_engine.core.engine_rig import Rig, submit

PROMPT = range(50)
LONG = range(LEAST_AWAITED_TOKENS)


def wide(lookahead: bool = False) -> Rig:
    """Room for three long prompts in a step."""
    return Rig(200, max_num_batched_tokens=4 * LEAST_AWAITED_TOKENS, lookahead=lookahead, in_order=False)


def test_the_second_request_computes_only_what_is_new() -> None:
    rig = Rig()
    rig.submit(submit(1, PROMPT, 4))
    rig.run()
    rig.submit(submit(2, PROMPT, 4))
    rig.run()
    assert rig.cached == {1: 0, 2: 48}
    assert rig.tokens[2] == rig.tokens[1] == expected_answer(PROMPT, 4)
    seen = rig.scheduler.snapshot()
    assert (seen.prompt_tokens_computed_total, seen.prompt_tokens_cached_total) == (52, 48)
    assert (seen.prefix_queries_total, seen.prefix_hits_total) == (100, 48)
    assert (seen.blocks_used, seen.blocks_cached, seen.blocks_free) == (0, 3, 61)


def test_an_answer_is_part_of_the_prefix_of_the_next_turn() -> None:
    rig = Rig()
    rig.submit(submit(1, PROMPT, 20))
    rig.run()
    rig.submit(submit(2, [*PROMPT, *rig.tokens[1], 5], 3))
    rig.run()
    assert rig.cached[2] == 64


def test_a_chunk_in_the_middle_of_a_long_prompt_is_shared_before_the_prompt_is_done() -> None:
    rig = Rig(max_num_batched_tokens=20, num_blocks=64)
    rig.submit(submit(1, range(100), 2))
    rig.step()
    rig.step()
    rig.submit(submit(2, [*range(16), 500], 2))
    rig.run()
    assert rig.cached[2] == 16


def test_another_salt_shares_nothing_and_the_same_salt_does() -> None:
    rig = Rig()
    rig.submit(submit(1, PROMPT, 1, salt="tenant"))
    rig.run()
    rig.submit(submit(2, PROMPT, 1), submit(3, PROMPT, 1, salt="tenant"))
    rig.run()
    assert (rig.cached[2], rig.cached[3]) == (0, 48)


def test_equal_prompts_of_two_adapters_and_of_the_model_itself_share_nothing() -> None:
    rig = Rig()
    for first_id in (0, 10):  # once computed, once with what the first three left
        for number, adapter in enumerate((None, 0, 1), start=first_id):
            rig.submit(submit(number, PROMPT, 4, adapter=adapter))
            rig.run()
            assert rig.tokens[number] == expected_answer(PROMPT, 4, adapter=adapter)
    assert rig.cached == {0: 0, 1: 0, 2: 0, 10: 48, 11: 48, 12: 48}


def test_a_salt_that_looks_like_another_s_adapter_shares_nothing_with_it() -> None:
    prefix = (0).to_bytes(4, "little").decode()
    rig = Rig()
    rig.submit(submit(1, PROMPT, 1, salt="tenant", adapter=0))
    rig.run()
    rig.submit(submit(2, PROMPT, 1, salt=f"{prefix}tenant"))
    rig.run()
    assert rig.cached[2] == 0


def test_prompt_logprobs_are_complete_though_the_prompt_is_cached() -> None:
    rig = Rig()
    rig.submit(submit(1, PROMPT, 2))
    rig.run()
    rig.submit(submit(2, PROMPT, 2, prompt_logprobs=1))
    rig.run()
    assert rig.cached[2] == 0
    assert rig.scored[2] == expected_prompt_logprobs(PROMPT)
    assert rig.scheduler.snapshot().prefix_queries_total == 50


def test_what_a_failed_request_computed_is_never_read() -> None:
    rig = Rig(max_num_batched_tokens=32)
    rig.submit(submit(1, PROMPT, 2))
    rig.step()
    rig.runner.failing = {1}
    rig.step()
    rig.runner.failing = set()
    assert rig.ends[1].error == "logits are not finite"
    rig.submit(submit(2, PROMPT, 2))
    rig.run()
    assert rig.cached[2] == 0
    assert rig.tokens[2] == expected_answer(PROMPT, 2)


def test_a_prompt_that_is_wholly_cached_still_computes_its_last_block() -> None:
    rig = Rig()
    rig.submit(submit(1, range(48), 30))
    rig.run()
    rig.submit(submit(2, range(48), 30))
    rig.run()
    assert rig.cached[2] == 32
    assert rig.tokens[2] == rig.tokens[1]


@pytest.mark.parametrize("lookahead", [False, True])
def test_prompts_that_come_together_compute_what_they_share_once(lookahead: bool) -> None:
    rig = wide(lookahead)
    prompts = {number: [*LONG, 500 + number] for number in range(3)}
    rig.submit(*(submit(number, prompt, 4) for number, prompt in prompts.items()))
    rig.run()
    assert rig.cached == {0: 0, 1: len(LONG), 2: len(LONG)}
    assert rig.tokens == {number: expected_answer(prompt, 4) for number, prompt in prompts.items()}


def test_a_prompt_does_not_wait_for_the_little_that_it_shares_nor_for_another_tenant() -> None:
    rig = wide()
    rig.submit(submit(0, [*LONG, 1], 4), submit(1, [*LONG[:-1], 7, 1], 4), submit(2, [*LONG, 1], 4, salt="other"))
    rig.step()
    assert rig.cached == {0: 0, 1: 0, 2: 0}


def test_a_prompt_that_shares_little_more_than_is_known_already_does_not_wait() -> None:
    rig = wide()
    rig.submit(submit(0, [*LONG, 1], 1))
    rig.run()
    longer = [*LONG, *range(600, 632)]
    rig.submit(submit(1, [*longer, 1], 4), submit(2, [*longer, 2], 4))
    rig.step()
    assert rig.cached[1] == rig.cached[2] == len(LONG)


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("end", ["abort", "failure"])
def test_who_waits_for_a_prompt_that_is_given_up_computes_it_itself(steps: int, end: str, lookahead: bool) -> None:
    rig = Rig(200, max_num_batched_tokens=64, lookahead=lookahead)
    rig.submit(submit(0, [*LONG, 1], 4), submit(1, [*LONG, 2], 4))
    for _ in range(steps):
        rig.step()
    assert 1 not in rig.cached
    if end == "abort":
        rig.scheduler.abort([0])
    else:
        rig.runner.failing = {0}
        rig.step()
        rig.runner.failing = set()
    rig.run()
    assert rig.ends[0].finish_reason == ("abort" if end == "abort" else "error")
    assert rig.tokens[1] == expected_answer([*LONG, 2], 4)


@pytest.mark.parametrize("lookahead", [False, True])
def test_who_shares_nothing_passes_those_who_wait_for_a_prompt(lookahead: bool) -> None:
    rig = wide(lookahead)
    pairs = [submit(number, [1 + number // 2, *LONG, number], 4) for number in range(6)]
    rig.submit(*pairs)
    rig.step()
    assert set(rig.cached) == {0, 2, 4}
    rig.run()
    assert [rig.cached[number] for number in range(6)] == [0, len(LONG)] * 3


def test_those_who_wait_come_before_who_came_later() -> None:
    rig = wide()
    rig.submit(submit(0, [*LONG, 0], 20), submit(1, [*LONG, 1], 20), submit(2, [*LONG, 2], 20))
    rig.step()
    rig.submit(submit(3, range(50), 4))
    rig.step()
    assert [step.sequence_id for step in rig.plans[-1].sequences] == [0, 1, 2, 3]


def test_no_more_than_some_are_passed_in_a_step() -> None:
    rig = wide()
    rig.submit(*(submit(number, [*LONG, number], 1) for number in range(MOST_PASSED + 1)), submit(99, range(50), 1))
    rig.step()
    assert set(rig.cached) == {0}
