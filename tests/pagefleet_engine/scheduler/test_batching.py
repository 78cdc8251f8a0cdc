"""What is put into one step, and in which order."""

import pytest

from tests.pagefleet_engine.core.chain_runner import expected_answer, expected_prompt_logprobs
from tests.pagefleet_engine.core.engine_rig import Rig, submit


def shape(rig: Rig) -> list[list[tuple[int, int]]]:
    """For each step the sequences with their token counts."""
    return [[(step.sequence_id, step.tokens) for step in plan.sequences] for plan in rig.plans]


def test_decodes_come_first_then_running_prefills_then_new_requests() -> None:
    rig = Rig(max_num_batched_tokens=32)
    rig.submit(submit(1, range(10), 9))
    rig.step()
    rig.submit(submit(2, range(100, 150), 2), submit(3, range(5), 2))
    rig.step()
    rig.step()
    assert shape(rig) == [[(1, 10)], [(1, 1), (2, 31)], [(1, 1), (2, 19), (3, 5)]]
    told = rig.scheduler.snapshot()
    assert (told.prefill_tokens_total, told.decode_tokens_total) == (10 + 31 + 19 + 5, 1 + 1)
    rig.run()


def test_requests_start_in_the_order_they_came_and_nobody_overtakes_a_large_one() -> None:
    rig = Rig(num_blocks=8, max_num_batched_tokens=128)
    rig.submit(submit(1, range(60), 5), submit(2, range(200, 280), 5), submit(3, range(3), 5))
    rig.run()
    first_steps: dict[int, int] = {}
    for number, plan in enumerate(rig.plans):
        for step in plan.sequences:
            first_steps.setdefault(step.sequence_id, number)
    assert first_steps[1] < first_steps[2] <= first_steps[3]


def test_no_more_requests_run_than_there_are_seats() -> None:
    rig = Rig(max_num_seqs=2)
    rig.submit(*(submit(number, range(number + 1), 4) for number in range(5)))
    rig.step()
    seen = rig.scheduler.snapshot()
    assert (seen.running, seen.waiting, seen.queued_prompt_tokens) == (2, 3, 3 + 4 + 5)
    rig.run()


def test_a_budget_smaller_than_the_seats_is_never_exceeded() -> None:
    rig = Rig(max_num_batched_tokens=2)
    rig.submit(*(submit(number, [number], 3) for number in range(4)))
    rig.run()
    assert [rig.tokens[number] for number in range(4)] == [expected_answer([number], 3) for number in range(4)]


def test_a_request_that_no_pass_has_looked_at_does_not_count_as_waiting() -> None:
    rig = Rig()
    rig.submit(submit(1, range(4), 2))
    assert rig.scheduler.snapshot().waiting == 0
    assert rig.scheduler.has_work
    rig.run()


def test_the_watermark_keeps_blocks_for_those_who_run_but_an_empty_pool_always_admits() -> None:
    rig = Rig(num_blocks=4, max_num_batched_tokens=100)
    rig.submit(submit(1, range(20), 3), submit(2, range(100, 120), 3), submit(3, range(200, 263), 1))
    rig.step()
    assert [entry[0] for entry in shape(rig)[0]] == [1]
    rig.run()
    assert set(rig.ends) == {1, 2, 3}


def test_a_stop_token_ends_the_answer_and_is_told() -> None:
    answer = expected_answer(range(9), 20)
    rig = Rig()
    rig.submit(submit(1, range(9), 20, stop=(answer[4],)))
    rig.run()
    assert rig.tokens[1] == answer[: answer.index(answer[4]) + 1]
    assert rig.ends[1].finish_reason == "stop"


def test_a_stop_token_inside_the_prompt_stops_nothing() -> None:
    rig = Rig()
    rig.submit(submit(1, [998 - 5, 3], 2, stop=(3,)))
    rig.run()
    assert len(rig.tokens[1]) in {1, 2}
    assert rig.ends[1].finish_reason is not None


@pytest.mark.parametrize("prompt_logprobs", [None, 0, 3])
@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 17, 50])
def test_scoring_a_prompt_generates_nothing(prompt_tokens: int, prompt_logprobs: int | None) -> None:
    rig = Rig(max_num_batched_tokens=16)
    prompt = list(range(prompt_tokens))
    rig.submit(submit(1, prompt, 0, prompt_logprobs=prompt_logprobs), submit(2, [1, 2], 2))
    rig.run()
    assert 1 not in rig.tokens
    assert rig.ends[1].finish_reason == "length"
    assert rig.scored[1] == ([] if prompt_logprobs is None else expected_prompt_logprobs(prompt))
    assert len(rig.tokens[2]) == 2


def test_a_second_request_under_a_live_id_is_dropped() -> None:
    rig = Rig()
    rig.submit(submit(1, range(9), 4))
    rig.scheduler.submit(submit(1, range(3), 9))
    rig.run()
    assert rig.tokens[1] == expected_answer(range(9), 4)
