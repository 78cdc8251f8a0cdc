"""The real runner: a decoder in torch, its KV memory, and the sampler."""

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch

from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.runner import sampler
from pagefleet_engine.runner.histories import Histories
from pagefleet_engine.runner.packing import pack
from pagefleet_engine.steps import (
    Deferred,
    Pending,
    Progress,
    SequenceResult,
    SequenceStep,
    StepPlan,
    TokenLogprobs,
    no_progress,
)

PROMPT_LOGPROB_ROWS = 64
"""Prompt positions whose whole distributions are in memory at the same time."""
log = logging.getLogger(__name__)


class TorchRunner:
    """Computes step plans (`steps.Runner`). Not thread-safe: one loop owns it."""

    def __init__(self, decoder: PagedDecoder, num_blocks: int) -> None:
        """Takes the decoder over and makes its KV memory."""
        self._decoder, self._num_blocks = decoder, num_blocks
        self._histories = Histories()
        decoder.allocate(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""
        return self._num_blocks

    @property
    def lookahead(self) -> bool:
        """It computes in the thread that asks, so nothing can be planned meanwhile."""
        return False

    @property
    def gpu(self) -> None:
        """It computes without a GPU."""

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Pending:
        """A step that `compute` computes once its results are asked for."""
        return Deferred(self.compute, plan)

    def idle_work(self) -> bool:
        """Nothing waits."""
        return False

    def compute(self, plan: StepPlan, progress: Progress = no_progress) -> Sequence[SequenceResult]:
        """Compute the step; one result for each sequence of the plan, in its order.

        A sequence that cannot be computed (a token or bias outside the vocabulary, numbers that are not
        finite) gets a `failure`; the others are not touched by it.
        """
        self._histories.follow(plan.sequences)
        results = {
            step.sequence_id: _failed(step, reason)
            for step in plan.sequences
            if (reason := self._refusal(step)) is not None
        }
        computable = [step for step in plan.sequences if step.sequence_id not in results]
        if computable:
            results |= {result.sequence_id: result for result in self._compute(computable, progress)}
        return [results[step.sequence_id] for step in plan.sequences]

    def _refusal(self, step: SequenceStep) -> str | None:
        vocabulary = self._decoder.config.vocab_size
        if step.token_ids is None:
            return "the step names no tokens, and this runner computes one step at a time"
        if max(step.token_ids) >= vocabulary or min(step.token_ids) < 0:
            return f"a token id is outside the vocabulary of {vocabulary}"
        if step.next_prompt_token is not None and not 0 <= step.next_prompt_token < vocabulary:
            return f"a prompt token is outside the vocabulary of {vocabulary}"
        if any(not 0 <= token_id < vocabulary for token_id, _ in step.sampling.logit_bias):
            return f"logit_bias names a token outside the vocabulary of {vocabulary}"
        if any(not 0 <= token_id < vocabulary for token_id in step.sampling.barred_token_ids):
            return f"a stop token is outside the vocabulary of {vocabulary}"
        if step.sample and step.sampling.penalises and self._histories.past(step) is None:
            return "its earlier tokens, which the sampling penalises, are not known"
        return None

    def _compute(self, sequences: Sequence[SequenceStep], progress: Progress) -> list[SequenceResult]:
        packed = pack(sequences)
        hidden = self._decoder.forward(packed, progress)
        steps = [sequences[index] for index in packed.order]
        last = hidden[torch.from_numpy(packed.last_rows)]
        finite = last.isfinite().all(-1).tolist()
        choices = self._choose(last, steps, finite)
        progress()
        results = []
        for step, row, is_finite in zip(steps, packed.last_rows.tolist(), finite, strict=True):
            choice = choices.get(step.sequence_id)
            scored = self._prompt_logprobs(step, hidden[row + 1 - step.tokens : row + 1], progress)
            if not is_finite or scored is None or (choice is not None and choice.token_id is None):
                self._scrub(step)
                results.append(_failed(step, "the model's numbers for this sequence are not finite"))
                continue
            results.append(
                SequenceResult(
                    sequence_id=step.sequence_id,
                    token_id=None if choice is None else choice.token_id,
                    logprobs=None if choice is None else choice.logprobs,
                    prompt_logprobs=scored,
                )
            )
        return results

    def _choose(
        self, last: torch.Tensor, steps: Sequence[SequenceStep], finite: Sequence[bool]
    ) -> dict[int, sampler.Choice]:
        """By sequence id, for those that sample and have finite states."""
        rows = [row for row, step in enumerate(steps) if step.sample and finite[row]]
        if not rows:
            return {}
        logits = self._decoder.logits(last if len(rows) == len(steps) else last[rows])
        draws = [self._draw(steps[row]) for row in rows]
        chosen = sampler.choose(logits, draws)
        return {steps[row].sequence_id: choice for row, choice in zip(rows, chosen, strict=True)}

    def _draw(self, step: SequenceStep) -> sampler.Draw:
        return sampler.Draw(step.sampling, step.start + step.tokens, self._histories.past(step))

    def _prompt_logprobs(
        self, step: SequenceStep, rows: torch.Tensor, progress: Progress
    ) -> tuple[TokenLogprobs, ...] | None:
        """Those that the step asks for, or None when they are no numbers."""
        if step.prompt_logprobs is None:
            return ()
        following = [*(step.token_ids or ())[1:]]
        if step.next_prompt_token is not None:
            following.append(step.next_prompt_token)
        result: list[TokenLogprobs] = []
        for first in range(0, len(following), PROMPT_LOGPROB_ROWS):
            tokens = following[first : first + PROMPT_LOGPROB_ROWS]
            logits = self._decoder.logits(rows[first : first + len(tokens)])
            result += sampler.token_logprobs(logits, tokens, step.prompt_logprobs)
            progress()
        return None if any(math.isnan(entry.logprob) for entry in result) else tuple(result)

    def _scrub(self, step: SequenceStep) -> None:
        """Leave no NaN behind: attention reads a block's stale places with weight 0, and 0 x NaN is NaN."""
        log.warning("sequence_not_finite", extra={"sequence_id": step.sequence_id, "start": step.start})
        self._decoder.scrub(torch.from_numpy(np.array(step.block_table, np.int64)).to(self._decoder.device))


def _failed(step: SequenceStep, reason: str) -> SequenceResult:
    return SequenceResult(sequence_id=step.sequence_id, token_id=None, failure=reason)
