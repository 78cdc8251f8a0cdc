"""One turn after another: hear, schedule, compute, tell."""

import logging
import time
from collections.abc import Callable, Sequence

from pagefleet_engine.core.channel import CoreChannel
from pagefleet_engine.scheduler.fcfs import Scheduler
from pagefleet_engine.steps import Runner, RunnerBroken, SequenceResult, StepPlan
from pagefleet_engine.wire import CoreStatus, StepReport, StepTimes, Submit, ToCore

HEARTBEAT_INTERVAL_S = 0.25
FAILED_STEPS_IN_A_ROW_LIMIT = 3

log = logging.getLogger(__name__)


class CoreLoop:
    """Drives one scheduler and one runner for the API process at the other end of the channel.

    Every turn sends one frame, which is the heartbeat too: while it is idle four times a second, otherwise
    after each step. A loop that hangs sends none.
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
        self._runner = runner
        self._clock = clock
        self._last_step = clock()
        self._steps_total = 0
        self._failed_in_a_row = 0
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
        events = self._scheduler.drain_events()
        self._channel.send(StepReport(events=events, status=self._status(), times=times))

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
        results = self._execute(plan)
        computed = self._last_step = self._clock()
        if results is None:
            return ()
        self._scheduler.complete(plan, results)
        self._steps_total += 1
        prefill_tokens = sum(len(step.token_ids) for step in plan.sequences if len(step.token_ids) > 1)
        return (
            StepTimes(
                schedule_s=planned - begin,
                forward_s=computed - planned,
                batch_tokens=plan.batch_tokens,
                prefill_tokens=prefill_tokens,
            ),
        )

    def _execute(self, plan: StepPlan) -> Sequence[SequenceResult] | None:
        """The step's results; None when it failed and its requests have been told so."""
        try:
            results = self._runner.execute(plan)
            _require_answers(plan, results)
        except RunnerBroken:
            raise
        except Exception as error:
            self._failed_in_a_row += 1
            log.exception("step_failed", extra={"sequences": len(plan.sequences)})
            message = f"{type(error).__name__}: {error}"
            if self._failed_in_a_row >= FAILED_STEPS_IN_A_ROW_LIMIT:
                raise RunnerBroken(f"{self._failed_in_a_row} steps failed in a row: {message}") from error
            self._scheduler.fail(plan, f"The engine failed while it computed this request ({message}).")
            return None
        self._failed_in_a_row = 0
        return results

    def _check(self) -> None:
        """Compare the KV books once after work has ended, when for a while nobody has asked for anything."""
        self._checked = True
        found = self._scheduler.check()
        self._blocks_leaked = found.leaked_blocks
        if found.leaked_blocks or found.faults:
            log.error("kv_books_wrong", extra={"leaked_blocks": found.leaked_blocks, "faults": found.faults})

    def _status(self) -> CoreStatus:
        return CoreStatus(
            **self._scheduler.snapshot()._asdict(),
            blocks_leaked=self._blocks_leaked,
            steps_total=self._steps_total,
            seconds_since_last_step=self._clock() - self._last_step,
        )


def _require_answers(plan: StepPlan, results: Sequence[SequenceResult]) -> None:
    asked = [step.sequence_id for step in plan.sequences]
    answered = [result.sequence_id for result in results]
    if asked != answered:
        raise ValueError(f"the runner answered for sequences {answered}, asked were {asked}")
