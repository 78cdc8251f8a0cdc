"""One turn after another: hear, schedule, launch, take in, tell."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pagefleet_engine.core.channel import CoreChannel
from pagefleet_engine.core.containment import Containment, StepFailed
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.steps import Pending, Runner, SequenceResult, StepPlan
from pagefleet_engine.wire import CoreStatus, StepReport, StepTimes, Submit, ToCore

HEARTBEAT_INTERVAL_S = 0.25

log = logging.getLogger(__name__)


class _Flight(NamedTuple):
    """A step that was launched and not yet taken in."""

    plan: StepPlan
    pending: Pending
    schedule_s: float
    launched_at_s: float


class CoreLoop:
    """Drives one scheduler and one runner for the API process at the other end of the channel.

    A runner with lookahead is kept busy: each turn launches the next step before it takes in the one that
    computes. When one of them fails, both are let go, and the next step is computed by itself.

    Every turn sends one frame, which is the heartbeat too: while it is idle four times a second, otherwise
    after each step. A step that seats somebody is announced before it, and one that takes long sends
    heartbeats as it makes progress. A loop that hangs sends none.
    """

    def __init__(
        self,
        channel: CoreChannel,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._scheduler = scheduler
        self._containment = Containment(runner, scheduler.harmless_step)
        self._runner = runner
        self._clock = clock
        self._progressed_at_s = self._told_at_s = self._step_ended_at_s = clock()
        self._flight: _Flight | None = None
        self._resting = False
        """Idle, and more idle work waits: it goes on as long as nobody asks for anything."""
        self._blocks_leaked = 0
        self._checked = True

    def run(self) -> None:
        """Serve for ever; ends by `ChannelClosed`, or by `RunnerBroken` when no step succeeds any more."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Hear what there is, take in one step if anybody can run, tell what came of it."""
        idle = self._flight is None and not self._scheduler.has_work
        waits = idle and not self._resting
        messages = self._channel.receive(HEARTBEAT_INTERVAL_S if waits else 0.0)
        self._resting = False
        for message in messages:
            self._hear(message)
        if idle and not messages:
            self._rest()
        times = self._step_ahead() if self._runner.lookahead else self._step_alone()
        self._tell(self._clock(), times)

    def _hear(self, message: ToCore) -> None:
        if isinstance(message, Submit):
            self._scheduler.submit(message)
        else:
            self._scheduler.abort(message.request_ids)

    def _step_alone(self) -> tuple[StepTimes, ...]:
        """Compute a step with no other in flight."""
        begin_s = self._clock()
        plan = self._scheduler.schedule()
        if plan is None:
            return ()
        planned_at_s = self._announce()
        results = self._containment.execute(plan, self._progress)
        return self._take_in(plan, results, planned_at_s - begin_s, planned_at_s)

    def _step_ahead(self) -> tuple[StepTimes, ...]:
        """Take in the step in flight, with the next one launched behind it."""
        flight, self._flight = self._flight, None
        try:
            flight = flight or self._launch()
            if flight is None:
                return ()
            following = self._launch()
            results = self._containment.results(flight.plan, flight.pending, self._progress)
        except StepFailed:
            self._scheduler.rollback()
            times = self._step_alone()
            # Its parts may have been computed apart: what the runner kept of the others is gone.
            self._scheduler.rollback()
            return times
        self._flight = following
        return self._take_in(flight.plan, results, flight.schedule_s, flight.launched_at_s)

    def _launch(self) -> _Flight | None:
        begin_s = self._clock()
        plan = self._scheduler.schedule()
        if plan is None:
            return None
        planned_at_s = self._announce()
        pending = self._containment.launch(plan, self._progress)
        return _Flight(plan, pending, planned_at_s - begin_s, planned_at_s)

    def _announce(self) -> float:
        """A step has been planned: tell who takes a seat in it. Returns when."""
        self._checked = False
        planned_at_s = self._clock()
        if self._scheduler.has_events:
            self._tell(planned_at_s)
        return planned_at_s

    def _take_in(
        self, plan: StepPlan, results: Sequence[SequenceResult], schedule_s: float, launched_at_s: float
    ) -> tuple[StepTimes, ...]:
        """What was computed, in a time that begins when the step before has ended."""
        now_s = self._clock()
        forward_s = now_s - max(launched_at_s, self._step_ended_at_s)
        self._progressed_at_s = self._step_ended_at_s = now_s
        self._scheduler.complete(plan, results, forward_s)
        return (StepTimes(schedule_s=schedule_s, forward_s=forward_s, batch_tokens=plan.batch_tokens),)

    def _progress(self) -> None:
        """A part of a long step is done: without a word for too long, this process would count as stuck."""
        now_s = self._progressed_at_s = self._clock()
        if now_s - self._told_at_s >= HEARTBEAT_INTERVAL_S:
            self._tell(now_s)

    def _tell(self, now_s: float, times: tuple[StepTimes, ...] = ()) -> None:
        self._told_at_s = now_s
        self._channel.send(StepReport(events=self._scheduler.drain_events(), status=self._status(now_s), times=times))

    def _rest(self) -> None:
        """For a while nobody has asked for anything: compare the KV books once, do a piece of what could wait."""
        if not self._checked:
            self._check()
        self._resting = self._runner.idle_work()

    def _check(self) -> None:
        self._checked = True
        found = self._scheduler.check()
        self._blocks_leaked = found.leaked_blocks
        if found.leaked_blocks or found.faults:
            log.error("kv_books_wrong", extra={"leaked_blocks": found.leaked_blocks, "faults": found.faults})

    def _status(self, now_s: float) -> CoreStatus:
        return CoreStatus(
            **self._scheduler.snapshot()._asdict(),
            blocks_leaked=self._blocks_leaked,
            seconds_since_last_step=now_s - self._progressed_at_s,
            gpu=self._runner.gpu,
        )
