"""From tokens on the device to a step's results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pagefleet_engine.runner.cuda.device import LANES, host_memory, require_device
from pagefleet_engine.runner.cuda.packing import Packed
from pagefleet_engine.steps import (
    Progress,
    SequenceResult,
    SequenceStep,
    StepPlan,
    TokenLogprobs,
    no_progress,
)

NOT_FINITE = "the model's numbers for this sequence are not finite"
Logprobs = Callable[[], Mapping[int, TokenLogprobs]]
PromptLogprobs = Callable[[], Mapping[int, tuple[TokenLogprobs, ...] | None]]


@dataclass(frozen=True, slots=True)
class Extras:
    """What few sequences ask for, by sequence id; called when the step is done.

    A sequence whose prompt log-probabilities are no numbers has None.
    """

    logprobs: Logprobs
    prompt_logprobs: PromptLogprobs


NO_EXTRAS = Extras(logprobs=dict, prompt_logprobs=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens on their way to the host."""

    tokens: torch.Tensor
    done: torch.cuda.Event
    extras: Extras


class Readings:
    """Pinned memory that readings take in turn."""

    def __init__(self, max_rows: int, make_event: Callable[[], torch.cuda.Event]) -> None:
        self._make_event = make_event
        self._lanes = [host_memory(max_rows) for _ in range(LANES)]
        self._next = 0

    def start(self, sampled: torch.Tensor, extras: Extras) -> Reading:
        """Copy `sampled` ([n] int32) to the host in stream order."""
        host = self._lanes[self._next % LANES][: len(sampled)]
        self._next += 1
        host.copy_(sampled, non_blocking=True)
        done = self._make_event()
        done.record()
        return Reading(host, done, extras)


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was sent to the device (`steps.Pending`). `refused` were not: why, by sequence id."""

    plan: StepPlan
    refused: Mapping[int, str]
    packed: Packed | None
    reading: Reading | None
    vocab_size: int

    def results(self, progress: Progress = no_progress) -> Sequence[SequenceResult]:
        """Wait for the step; one result for each sequence of the plan, in its order.

        Raises RunnerBroken when the device has failed: nothing runs on it any more.
        """
        found = {key: _failed(key, reason) for key, reason in self.refused.items()}
        if self.packed is not None and self.reading is not None:
            try:
                self.reading.done.synchronize()
            except torch.AcceleratorError as error:
                require_device(error)
                raise
            progress()
            found |= self._computed(self.packed, self.reading)
        return [found[step.sequence_id] for step in self.plan.sequences]

    def _computed(self, packed: Packed, reading: Reading) -> dict[int, SequenceResult]:
        tokens = dict(zip((row.step.sequence_id for row in packed.sampling), reading.tokens.tolist(), strict=True))
        logprobs, prompts = reading.extras.logprobs(), reading.extras.prompt_logprobs()
        return {
            step.sequence_id: self._result(step, tokens.get(step.sequence_id), logprobs, prompts)
            for step in packed.steps
        }

    def _result(
        self, step: SequenceStep, token: int | None, logprobs: Mapping[int, TokenLogprobs],
        prompts: Mapping[int, tuple[TokenLogprobs, ...] | None],
    ) -> SequenceResult:  # fmt: skip
        key = step.sequence_id
        scored = prompts.get(key, ())
        if scored is None or (token is not None and token >= self.vocab_size):
            return _failed(key, NOT_FINITE)
        return SequenceResult(sequence_id=key, token_id=token, logprobs=logprobs.get(key), prompt_logprobs=scored)


def _failed(sequence_id: int, reason: str) -> SequenceResult:
    return SequenceResult(sequence_id=sequence_id, token_id=None, failure=reason)
