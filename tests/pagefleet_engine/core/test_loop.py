"""The core's loop, turned by hand: what it tells, and what it survives."""

import logging
import random
import socket
import time
from collections.abc import Iterator, Sequence

import pytest

from pagefleet_engine.core.channel import ChannelClosed, CoreChannel
from pagefleet_engine.core.containment import BROKEN_IN_A_ROW_LIMIT
from pagefleet_engine.core.loop import HEARTBEAT_INTERVAL_S, CoreLoop
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.steps import GpuStatus, Pending, Progress, RunnerBroken, SequenceResult, StepPlan, no_progress
from pagefleet_engine.wire import Abort, StepReport
from tests.pagefleet_engine.core.api_side import ApiSide
from tests.pagefleet_engine.core.chain_runner import VOCAB_SIZE, ChainRunner, expected_answer
from tests.pagefleet_engine.core.engine_rig import submit


class FaultyRunner(ChainRunner):
    """Raises, or swallows an answer, where it meets certain tokens; `faults` hit whatever comes next.

    With `parts`, a step's progress is told that often.
    """

    def __init__(self, num_blocks: int, *, lookahead: bool) -> None:
        super().__init__(num_blocks, lookahead=lookahead)
        self.faults: list[Exception] = []
        self.poison: set[int] = set()
        self.swallowed: set[int] = set()
        self.parts = 0
        self.launch_faults = 0
        self.idle_pieces = 0
        self.executed = 0

    def idle_work(self) -> bool:
        self.idle_pieces = max(self.idle_pieces - 1, 0)
        return self.idle_pieces > 0

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Pending:
        if self.launch_faults:
            self.launch_faults -= 1
            self.forget()
            raise OSError("no device")
        return super().launch(plan, progress)

    def compute(self, plan: StepPlan, progress: Progress) -> list[SequenceResult]:
        self.executed += 1
        if self.faults:
            raise self.faults.pop(0)
        if any(self.poison.intersection(step.token_ids or ()) for step in plan.sequences):
            raise IndexError("index out of range in self")
        for _ in range(self.parts):
            progress()
        results = super().compute(plan, progress)
        swallowed = [bool(self.swallowed.intersection(step.token_ids or ())) for step in plan.sequences]
        return [result for result, gone in zip(results, swallowed, strict=True) if not gone]


class Desk:
    """A loop, its runner and the other end of its channel."""

    def __init__(self, num_blocks: int = 16, max_num_seqs: int = 2, *, lookahead: bool = False) -> None:
        core, api = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.now = 100.0
        self.api = ApiSide(api)
        self.runner = FaultyRunner(num_blocks, lookahead=lookahead)
        self.scheduler = Scheduler(Capacity(256, num_blocks, VOCAB_SIZE), max_num_seqs, 32)
        self.channel = CoreChannel(core)
        self.loop = CoreLoop(self.channel, self.scheduler, self.runner, clock=self.tick)

    def tick(self) -> float:
        self.now += 0.5
        return self.now

    def reports(self) -> list[StepReport]:
        """What one turn tells: the last one is the turn's own."""
        self.loop.turn()
        self.api.connection.setblocking(False)
        reports: list[StepReport] = []
        try:
            while isinstance(report := self.api.hear(), StepReport):
                reports.append(report)
        except BlockingIOError:
            return reports
        raise AssertionError("the loop said something else")

    def turn(self) -> StepReport:
        return self.reports()[-1]

    def turns(self, count: int) -> Sequence[StepReport]:
        return [self.turn() for _ in range(count)]

    def tokens(self, count: int) -> dict[int, list[int | None]]:
        """What each request is told in some turns, None for an error."""
        told: dict[int, list[int | None]] = {}
        for report in self.turns(count):
            for event in report.events:
                told.setdefault(event.request_id, []).append(event.token_id)
        return told


@pytest.fixture(params=[False, True], ids=["one step at a time", "lookahead"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(lookahead=request.param)
    yield desk
    desk.channel.close()
    desk.api.connection.close()


def test_a_step_that_was_launched_early_counts_from_the_end_of_the_one_before() -> None:
    desk = Desk(lookahead=True)
    desk.api.say(submit(1, range(20), 3))
    first, second, third = desk.turns(3)
    # The clock moves by half a second each time it is read.
    assert [report.times[0].forward_s for report in (first, second, third)] == [1.5, 2.0, 1.5]
    assert [report.times[0].batch_tokens for report in (first, second, third)] == [20, 1, 1]
    assert [report.status.seconds_since_last_step for report in (first, third) if report.status] == [0.5, 0.5]


def test_every_step_tells_its_token_its_times_and_the_state_after_it() -> None:
    desk = Desk()
    desk.api.say(submit(1, range(20), 3))
    first, second, third = desk.turns(3)
    told = [event.token_id for report in (first, second, third) for event in report.events]
    assert told == expected_answer(range(20), 3)
    assert [report.times[0].batch_tokens for report in (first, second)] == [20, 1]
    assert (first.times[0].schedule_s, first.times[0].forward_s) == (0.5, 0.5)
    assert first.status is not None
    assert (first.status.running, first.status.blocks_used) == (1, 2)
    assert third.status is not None
    assert (third.status.running, third.status.blocks_used, third.status.blocks_cached) == (0, 0, 1)
    assert third.status.blocks_leaked == 0


def test_every_report_tells_how_the_runners_gpu_stands(desk: Desk) -> None:
    first, second = desk.turn(), GpuStatus().replayed(8, 3)
    desk.runner.gpu = second
    assert [report.status.gpu for report in (first, desk.turn()) if report.status] == [None, second]


def test_an_idle_loop_sends_heartbeats_and_grows_older(desk: Desk) -> None:
    first, second = desk.turns(2)
    assert first.events == second.events == ()
    assert first.times == ()
    assert first.status is not None
    assert second.status is not None
    assert second.status.seconds_since_last_step > first.status.seconds_since_last_step > 0


def test_idle_work_begins_after_a_while_of_silence_and_goes_on_until_somebody_asks(desk: Desk) -> None:
    desk.runner.idle_pieces = 5
    desk.api.say(submit(1, [1], 1))
    desk.turn()
    assert desk.runner.idle_pieces == 5
    begin = time.monotonic()
    desk.turns(3)
    assert HEARTBEAT_INTERVAL_S <= time.monotonic() - begin < 2 * HEARTBEAT_INTERVAL_S
    assert desk.runner.idle_pieces == 2
    desk.api.say(submit(2, [1], 1))
    desk.turn()
    assert desk.runner.idle_pieces == 2


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


def test_a_seat_is_told_before_the_step_that_begins_to_compute_it(desk: Desk) -> None:
    desk.api.say(*(submit(number, [number], 2) for number in range(3)))
    announced, first = desk.reports()
    assert [(event.request_id, event.cached_prompt_tokens, event.token_id) for event in announced.events] == [
        (0, 0, None),
        (1, 0, None),
    ]
    assert announced.times == ()
    assert announced.status is not None
    assert (announced.status.running, announced.status.waiting) == (2, 1)
    assert [event.cached_prompt_tokens for event in first.events] == [None, None]
    assert len(desk.reports()) == 1
    assert [event.request_id for event in desk.reports()[0].events] == [2]


def test_a_long_step_sends_heartbeats_as_it_makes_progress() -> None:
    desk = Desk()
    desk.api.say(submit(1, [1], 2))
    desk.turn()
    desk.now += 900
    desk.runner.parts = 5
    *beats, last = desk.reports()
    assert len(beats) == 5
    assert not any(beat.events or beat.times for beat in beats)
    assert {beat.status.seconds_since_last_step for beat in beats if beat.status is not None} == {0.0}
    assert [event.token_id for event in last.events] == expected_answer([1], 2)[1:]


def test_a_step_that_raises_for_a_moment_costs_nobody(desk: Desk) -> None:
    desk.api.say(*(submit(number, [number], 3) for number in range(2)))
    desk.runner.faults = [MemoryError("out of memory")]
    assert desk.tokens(3) == {number: expected_answer([number], 3) for number in range(2)}


@pytest.mark.parametrize("poisoned", range(7))
def test_a_request_that_makes_every_step_raise_costs_itself_alone(poisoned: int) -> None:
    desk = Desk(max_num_seqs=7)
    desk.runner.poison = {995}
    desk.api.say(*(submit(number, [995 if number == poisoned else number], 3) for number in range(7)))
    first = desk.turn()
    failed = [event for event in first.events if event.finish_reason == "error"]
    assert [event.request_id for event in failed] == [poisoned]
    assert "IndexError: index out of range in self" in str(failed[0].error)
    told = {event.request_id: [event.token_id] for event in first.events if event.finish_reason is None}
    for number, tokens in desk.tokens(2).items():
        assert told[number] + tokens == expected_answer([number], 3)
    assert desk.runner.executed <= 1 + 1 + 2 * 3 + 2, "tried more than the halves that hold the fault"
    assert desk.scheduler.check() == (0, ())


@pytest.mark.parametrize("seed", range(6))
def test_faults_at_any_moment_end_each_request_once_and_change_no_answer(seed: int) -> None:
    dice = random.Random(seed)
    desk = Desk(num_blocks=12, max_num_seqs=4, lookahead=True)
    desk.runner.poison = {995}
    told: dict[int, list[int | None]] = {}
    ends: dict[int, list[str]] = {}
    requests = [
        submit(number, [995 if dice.random() < 0.1 else number, *range(dice.randrange(30))], dice.randrange(1, 20))
        for number in range(30)
    ]
    waiting = list(requests)
    for _ in range(2000):
        # An idle loop would wait for a request in real time.
        if waiting and (dice.random() < 0.3 or not desk.scheduler.has_work):
            desk.api.say(waiting.pop(0))
        desk.runner.launch_faults = int(dice.random() < 0.05)
        desk.runner.faults = [MemoryError("for a moment")] if dice.random() < 0.1 else []
        for report in desk.reports():
            for event in report.events:
                if event.token_id is not None:
                    told.setdefault(event.request_id, []).append(event.token_id)
                if event.finish_reason is not None:
                    ends.setdefault(event.request_id, []).append(event.finish_reason)
        if not waiting and not desk.scheduler.has_work:
            break
    for request in requests:
        poisoned = 995 in request.prompt_token_ids
        assert ends[request.request_id] == ["error" if poisoned else "length"]
        answer = [] if poisoned else expected_answer(request.prompt_token_ids, request.max_tokens)
        assert told.get(request.request_id, []) == answer
    assert desk.scheduler.check() == (0, ())


def test_requests_that_fail_alone_never_end_the_engine(desk: Desk) -> None:
    desk.runner.poison = {995}
    for number in range(3 * BROKEN_IN_A_ROW_LIMIT):
        desk.api.say(submit(number, [995], 2))
        assert [event.finish_reason for event in desk.turn().events] == ["error"]
    desk.api.say(submit(99, [1], 2))
    assert desk.tokens(2) == {99: expected_answer([1], 2)}


def test_a_request_that_raises_in_a_full_pool_costs_itself_alone() -> None:
    desk = Desk(num_blocks=2)
    desk.runner.poison = {995}
    desk.api.say(submit(1, [995] * 20, 2), submit(2, [2], 2))
    assert desk.tokens(3) == {1: [None], 2: expected_answer([2], 2)}


def test_a_runner_that_leaves_somebody_out_costs_that_one_alone(desk: Desk) -> None:
    desk.api.say(*(submit(number, [number], 3) for number in range(2)))
    desk.runner.swallowed = {1}
    assert desk.tokens(3) == {0: expected_answer([0], 3), 1: [None]}


def test_a_runner_that_fails_harmless_steps_too_costs_the_step_and_in_the_end_the_loop(desk: Desk) -> None:
    def always() -> list[Exception]:
        return [ValueError("no") for _ in range(2 + 2 * desk.runner.lookahead)]

    for number in range(BROKEN_IN_A_ROW_LIMIT - 1):
        desk.api.say(submit(number, [1], 2))
        desk.runner.faults = always()
        assert [event.finish_reason for event in desk.turn().events] == ["error"]
    desk.api.say(submit(90, [1], 1))
    assert desk.tokens(1) == {90: expected_answer([1], 1)}
    with pytest.raises(RunnerBroken, match="3 steps failed in a row: ValueError: no"):
        for number in range(BROKEN_IN_A_ROW_LIMIT):
            desk.api.say(submit(number, [1], 2))
            desk.runner.faults = always()
            desk.turn()


def test_an_api_process_that_goes_during_a_step_ends_the_loop_and_is_no_fault(desk: Desk) -> None:
    desk.api.say(submit(1, [1], 9))
    desk.turn()
    desk.runner.parts = 1
    desk.api.connection.shutdown(socket.SHUT_RD)
    executed = desk.runner.executed
    with pytest.raises(ChannelClosed):
        desk.loop.turn()
    assert desk.runner.executed == executed + 1


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
