"""Aborts and failures at awkward moments."""

import pytest

from pagefleet_engine.steps import SequenceResult, execute
from tests.pagefleet_engine.core.chain_runner import expected_answer
from tests.pagefleet_engine.core.engine_rig import Rig, submit


def test_an_unknown_or_finished_or_aborted_request_may_be_aborted_again() -> None:
    rig = Rig()
    rig.scheduler.abort([1, 1, 7])
    rig.submit(submit(1, range(5), 1))
    rig.run()
    rig.scheduler.abort([1, 1])
    rig.read_events()
    assert rig.ends[1].finish_reason == "length"


def test_a_request_aborted_before_any_pass_gives_one_end() -> None:
    rig = Rig()
    rig.submit(submit(1, range(5), 5))
    rig.scheduler.abort([1, 1])
    rig.run()
    assert rig.ends[1].finish_reason == "abort"
    assert rig.scheduler.schedule() is None


@pytest.mark.parametrize("steps", [1, 3, 5, 20])
def test_an_abort_while_waiting_prefilling_or_decoding_frees_seat_and_blocks(steps: int) -> None:
    rig = Rig(max_num_seqs=1, max_num_batched_tokens=16)
    rig.submit(submit(1, range(50), 400), submit(2, range(9), 3), submit(3, range(9), 3))
    for _ in range(steps):
        rig.step()
    rig.scheduler.abort([1, 2])
    rig.step()
    assert [step.sequence_id for step in rig.plans[-1].sequences] == [3]
    seen = rig.scheduler.snapshot()
    assert (seen.running, seen.waiting, seen.queued_prompt_tokens, seen.blocks_used) == (1, 0, 0, 1)
    rig.run()


def test_results_for_a_request_that_was_aborted_meanwhile_are_ignored() -> None:
    rig = Rig()
    rig.submit(submit(1, range(5), 5), submit(2, range(7), 5))
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.abort([1])
    rig.scheduler.complete(plan, execute(rig.runner, plan))
    rig.run()
    assert rig.ends[1].finish_reason == "abort"
    assert 1 not in rig.tokens
    assert rig.tokens[2] == expected_answer(range(7), 5)


def test_a_failed_step_ends_only_its_own_requests() -> None:
    rig = Rig(max_num_seqs=2)
    rig.submit(submit(1, range(5), 5), submit(2, range(7), 5), submit(3, range(9), 5))
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.abort([1])
    failures = [SequenceResult(sequence_id=number, token_id=None, failure="no memory") for number in (1, 2)]
    rig.scheduler.complete(plan, failures)
    rig.run()
    assert rig.ends[1].finish_reason == "abort"
    assert (rig.ends[2].finish_reason, rig.ends[2].error) == ("error", "no memory")
    assert rig.tokens[3] == expected_answer(range(9), 5)


def test_a_failed_sequence_ends_alone() -> None:
    rig = Rig()
    rig.submit(submit(1, range(5), 5), submit(2, range(7), 5))
    rig.step()
    rig.runner.failing = {1}
    rig.step()
    rig.run()
    assert (rig.ends[1].finish_reason, rig.ends[1].error) == ("error", "logits are not finite")
    assert rig.tokens[2] == expected_answer(range(7), 5)


def test_a_missing_token_is_a_failure_of_its_sequence() -> None:
    rig = Rig()
    rig.submit(submit(1, range(5), 5))
    plan = rig.plan()
    assert plan is not None
    rig.scheduler.complete(plan, [SequenceResult(sequence_id=1, token_id=None)])
    rig.run()
    assert rig.ends[1].error == "The runner gave no token."
