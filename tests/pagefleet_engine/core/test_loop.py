"""The core's loop, turned by hand: what it tells, and what it survives."""

import logging
import socket
from collections.abc import Iterator, Sequence

import pytest

from pagefleet_engine.core.channel import ChannelClosed, CoreChannel
from pagefleet_engine.core.loop import FAILED_STEPS_IN_A_ROW_LIMIT, CoreLoop
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.fcfs import Scheduler
from pagefleet_engine.steps import RunnerBroken, SequenceResult, StepPlan
from pagefleet_engine.wire import Abort, StepReport
from tests.pagefleet_engine.core.api_side import ApiSide
from tests.pagefleet_engine.core.chain_runner import VOCAB_SIZE, ChainRunner, expected_answer
from tests.pagefleet_engine.core.engine_rig import submit


class FaultyRunner(ChainRunner):
    """Raises, or answers wrongly, for as many steps as it is told to."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.faults: list[Exception] = []
        self.swallows = 0

    def execute(self, plan: StepPlan) -> list[SequenceResult]:
        if self.faults:
            raise self.faults.pop(0)
        results = super().execute(plan)
        if self.swallows:
            self.swallows -= 1
            return results[1:]
        return results


class Desk:
    """A loop, its runner and the other end of its channel."""

    def __init__(self) -> None:
        core, api = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.now = 100.0
        self.api = ApiSide(api)
        self.runner = FaultyRunner(16)
        self.scheduler = Scheduler(Capacity(256, 16, VOCAB_SIZE), 2, 32)
        self.channel = CoreChannel(core)
        self.loop = CoreLoop(self.channel, self.scheduler, self.runner, clock=self.tick)

    def tick(self) -> float:
        self.now += 0.5
        return self.now

    def turn(self) -> StepReport:
        self.loop.turn()
        report = self.api.hear()
        assert isinstance(report, StepReport)
        return report

    def turns(self, count: int) -> Sequence[StepReport]:
        return [self.turn() for _ in range(count)]


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.channel.close()
    desk.api.connection.close()


def test_every_step_tells_its_token_its_times_and_the_state_after_it(desk: Desk) -> None:
    desk.api.say(submit(1, range(20), 3))
    first, second, third = desk.turns(3)
    told = [event.token_id for report in (first, second, third) for event in report.events]
    assert told == expected_answer(range(20), 3)
    assert [(report.times[0].batch_tokens, report.times[0].prefill_tokens) for report in (first, second)] == [
        (20, 20),
        (1, 0),
    ]
    assert (first.times[0].schedule_s, first.times[0].forward_s) == (0.5, 0.5)
    assert first.status is not None
    assert (first.status.running, first.status.blocks_used, first.status.steps_total) == (1, 2, 1)
    assert third.status is not None
    assert (third.status.running, third.status.blocks_used, third.status.blocks_cached) == (0, 0, 1)
    assert third.status.blocks_leaked == 0


def test_an_idle_loop_sends_heartbeats_and_grows_older(desk: Desk) -> None:
    first, second = desk.turns(2)
    assert first.events == second.events == ()
    assert first.times == ()
    assert first.status is not None
    assert second.status is not None
    assert second.status.seconds_since_last_step > first.status.seconds_since_last_step > 0


def test_nothing_waits_any_more_when_those_waiting_were_aborted(desk: Desk) -> None:
    desk.api.say(*(submit(number, range(5), 50) for number in range(4)))
    report = desk.turn()
    assert report.status is not None
    assert (report.status.running, report.status.waiting) == (2, 2)
    desk.api.say(Abort((0, 1, 2, 3)), Abort((3, 99)))
    report = desk.turn()
    assert [event.finish_reason for event in report.events] == ["abort"] * 4
    assert report.status is not None
    assert (report.status.running, report.status.waiting, report.status.blocks_used) == (0, 0, 0)


def test_a_runner_that_raises_costs_the_requests_of_that_step_alone(desk: Desk) -> None:
    desk.api.say(*(submit(number, [number], 3) for number in range(3)))
    desk.runner.faults = [MemoryError("out of memory")]
    failed, *later = desk.turns(5)
    assert [(event.request_id, event.finish_reason) for event in failed.events] == [(0, "error"), (1, "error")]
    assert "MemoryError: out of memory" in str(failed.events[0].error)
    assert failed.times == ()
    told = [event.token_id for report in later for event in report.events]
    assert told == expected_answer([2], 3)


def test_answers_for_other_sequences_than_asked_count_as_a_failed_step(desk: Desk) -> None:
    desk.api.say(*(submit(number, [number], 3) for number in range(2)))
    desk.runner.swallows = 1
    assert {event.finish_reason for event in desk.turn().events} == {"error"}


def test_failures_that_do_not_follow_each_other_are_survived(desk: Desk) -> None:
    for number in range(2 * FAILED_STEPS_IN_A_ROW_LIMIT):
        desk.api.say(submit(number, [1], 2))
        desk.turn()
        desk.runner.faults = [ValueError("no")]
        assert desk.turn().events[0].finish_reason == "error"


def test_a_runner_that_never_succeeds_again_ends_the_loop(desk: Desk) -> None:
    desk.runner.faults = [ValueError("no") for _ in range(FAILED_STEPS_IN_A_ROW_LIMIT)]
    with pytest.raises(RunnerBroken, match="3 steps failed in a row: ValueError: no"):
        for number in range(FAILED_STEPS_IN_A_ROW_LIMIT):
            desk.api.say(submit(number, [1], 2))
            desk.turn()


def test_a_runner_that_says_it_is_broken_ends_the_loop_at_once(desk: Desk) -> None:
    desk.runner.faults = [RunnerBroken("the GPU has gone")]
    desk.api.say(submit(1, [1], 2))
    with pytest.raises(RunnerBroken, match="the GPU has gone"):
        desk.loop.run()


def test_the_loop_ends_when_the_api_process_goes_though_it_has_work(desk: Desk) -> None:
    desk.api.say(submit(1, [1], 200))
    desk.turn()
    desk.api.connection.close()
    with pytest.raises(ChannelClosed):
        desk.loop.run()


def test_lost_blocks_are_told_and_logged_once_nobody_asks_for_anything(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.scheduler._pool.take()
    desk.api.say(submit(1, [1], 1))
    with caplog.at_level(logging.ERROR):
        last, idle, later = desk.turns(3)
    leaked = [report.status.blocks_leaked for report in (last, idle, later) if report.status is not None]
    assert leaked == [0, 1, 1]
    assert [record.message for record in caplog.records] == ["kv_books_wrong"]
