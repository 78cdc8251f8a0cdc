"""What later requests save, and what they must not be told."""

from tests.pagefleet_engine.core.chain_runner import expected_answer, expected_prompt_logprobs
from tests.pagefleet_engine.core.engine_rig import Rig, submit

PROMPT = range(50)


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
