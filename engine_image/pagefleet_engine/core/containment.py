"""Computes a step so that what one request does wrong costs that request alone."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from pagefleet_engine.core.channel import ChannelClosed
from pagefleet_engine.steps import (
    Pending,
    Progress,
    Runner,
    RunnerBroken,
    SequenceResult,
    SequenceStep,
    StepPlan,
)

BROKEN_IN_A_ROW_LIMIT = 3

Outcome = TypeVar("Outcome")
log = logging.getLogger(__name__)


class StepFailed(Exception):
    """A step in flight gave nothing; why has been logged."""


class _Fault(NamedTuple):
    """Why an attempt gave nothing; holds no traceback, which would keep the attempt's memory in use."""

    reason: str


class Containment:
    """Stands between the loop and its runner.

    With lookahead the loop asks for `launch` and `results`. When these fail, it lets go of all steps in flight
    and has the next one computed by `execute`, by itself.
    A step of `execute` that raises is computed again in halves, until those who make it raise are alone; that is safe,
    as computing a step again gives the same. `harmless_step` gives a step that nobody asked for, or None
    while there is no room for one: when even that raises, the fault is the runner's.
    """

    def __init__(self, runner: Runner, harmless_step: Callable[[], StepPlan | None]) -> None:
        self._runner = runner
        self._harmless_step = harmless_step
        self._broken_in_a_row = 0

    def launch(self, plan: StepPlan, progress: Progress) -> Pending:
        """Begin to compute a step; raises `StepFailed`, or `RunnerBroken` when the runner says so."""
        outcome = self._attempt(plan, lambda: self._runner.launch(plan, progress))
        if isinstance(outcome, _Fault):
            raise StepFailed
        return outcome

    def results(self, plan: StepPlan, pending: Pending, progress: Progress) -> Sequence[SequenceResult]:
        """What a launched step gave, as `execute`; raises as `launch`."""
        outcome = self._attempt(plan, lambda: _answers(plan, pending, progress))
        if isinstance(outcome, _Fault):
            raise StepFailed
        self._broken_in_a_row = 0
        return outcome

    def execute(self, plan: StepPlan, progress: Progress) -> Sequence[SequenceResult]:
        """One result for each sequence of the plan, in its order; those who cannot be computed have failed.

        Raises `RunnerBroken` when the runner says so, or has failed harmless steps too for some steps.
        """
        outcome = self._execute(plan, progress)
        if not isinstance(outcome, _Fault):
            self._broken_in_a_row = 0
            return outcome
        if self._works(progress):
            self._broken_in_a_row = 0
            return self._apart(plan.sequences, outcome, progress)
        self._broken_in_a_row += 1
        if self._broken_in_a_row >= BROKEN_IN_A_ROW_LIMIT:
            raise RunnerBroken(f"{self._broken_in_a_row} steps failed in a row: {outcome.reason}")
        return [_failed(step, outcome) for step in plan.sequences]

    def _works(self, progress: Progress) -> bool:
        plan = self._harmless_step()
        return plan is None or not isinstance(self._execute(plan, progress), _Fault)

    def _apart(self, sequences: tuple[SequenceStep, ...], fault: _Fault, progress: Progress) -> list[SequenceResult]:
        if len(sequences) == 1:
            return [_failed(sequences[0], fault)]
        middle = len(sequences) // 2
        results: list[SequenceResult] = []
        for half in (sequences[:middle], sequences[middle:]):
            outcome = self._execute(StepPlan(half), progress)
            results += self._apart(half, outcome, progress) if isinstance(outcome, _Fault) else outcome
        return results

    def _execute(self, plan: StepPlan, progress: Progress) -> Sequence[SequenceResult] | _Fault:
        return self._attempt(plan, lambda: _answers(plan, self._runner.launch(plan, progress), progress))

    def _attempt(self, plan: StepPlan, action: Callable[[], Outcome]) -> Outcome | _Fault:
        try:
            return action()
        except (RunnerBroken, ChannelClosed):
            raise
        except Exception as error:
            log.exception("step_failed", extra={"sequences": len(plan.sequences)})
            return _Fault(f"{type(error).__name__}: {error}")


def _answers(plan: StepPlan, pending: Pending, progress: Progress) -> Sequence[SequenceResult]:
    results = pending.results(progress)
    asked = [step.sequence_id for step in plan.sequences]
    answered = [result.sequence_id for result in results]
    if asked != answered:
        raise ValueError(f"the runner answered for sequences {answered}, asked were {asked}")
    return results


def _failed(step: SequenceStep, fault: _Fault) -> SequenceResult:
    said = f"The engine failed while it computed this request ({fault.reason})."
    return SequenceResult(sequence_id=step.sequence_id, token_id=None, failure=said)
