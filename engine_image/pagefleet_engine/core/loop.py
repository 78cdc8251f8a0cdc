"""One turn after another: hear, schedule, compute, tell."""

import logging
import time
from collections.abc import Callable

from pagefleet_engine.core.channel import CoreChannel
from pagefleet_engine.core.containment import Containment
from pagefleet_engine.scheduler.fcfs import Scheduler
from pagefleet_engine.steps import Runner
from pagefleet_engine.wire import CoreStatus, StepReport, StepTimes, Submit, ToCore

HEARTBEAT_INTERVAL_S = 0.25

log = logging.getLogger(__name__)


class CoreLoop:
    """Drives one scheduler and one runner for the API process at the other end of the channel.

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
        self._clock = clock
        self._progressed_at_s = self._told_at_s = clock()
        self._blocks_leaked = 0
        self._checked = True

    def run(self) -> None:
        """Serve for ever; ends by `ChannelClosed`, or by `RunnerBroken` when no step succeeds any more."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Hear what there is, compute one step if anybody can run, tell what came of it."""
        idle = not self._scheduler.has_work
        messages = self._channel.receive(HEARTBEAT_INTERVAL_S if idle else 0.0)
        for message in messages:
            self._hear(message)
        if idle and not messages and not self._checked:
            self._check()
        times = self._step()
        self._tell(self._clock(), times)

    def _hear(self, message: ToCore) -> None:
        if isinstance(message, Submit):
            self._scheduler.submit(message)
        else:
            self._scheduler.abort(message.request_ids)

    def _step(self) -> tuple[StepTimes, ...]:
        begin = self._clock()
        plan = self._scheduler.schedule()
        if plan is None:
            return ()
        self._checked = False
        planned = self._clock()
        if self._scheduler.has_events:
            self._tell(planned)
        results = self._containment.execute(plan, self._progress)
        computed = self._progressed_at_s = self._clock()
        self._scheduler.complete(plan, results)
        return (StepTimes(schedule_s=planned - begin, forward_s=computed - planned, batch_tokens=plan.batch_tokens),)

    def _progress(self) -> None:
        """A part of a long step is done: without a word for too long, this process would count as stuck."""
        now_s = self._progressed_at_s = self._clock()
        if now_s - self._told_at_s >= HEARTBEAT_INTERVAL_S:
            self._tell(now_s)

    def _tell(self, now_s: float, times: tuple[StepTimes, ...] = ()) -> None:
        self._told_at_s = now_s
        self._channel.send(StepReport(events=self._scheduler.drain_events(), status=self._status(now_s), times=times))

    def _check(self) -> None:
        """Compare the KV books once after work has ended, when for a while nobody has asked for anything."""
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
        )
