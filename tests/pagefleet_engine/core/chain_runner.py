"""A runner without a model that still finds out whether scheduler and block tables are right.

As in a transformer, what is stored at a position depends on everything before it, and is read back through
the block table: `memory[slot] = mix(memory[slot of the position before], token)`. The next token is drawn
from the last state, so one wrong block anywhere changes the answer; `expected_answer` computes it
without any memory. Nothing may read a slot that was not written since its block changed hands.
"""

from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.steps import (
    Deferred,
    Progress,
    SequenceResult,
    SequenceStep,
    StepPlan,
    TokenLogprobs,
    no_progress,
)

VOCAB_SIZE = 997


def mix(state: int, token_id: int) -> int:
    """The state after one token more."""
    return crc32(token_id.to_bytes(4, "little"), state)


def next_token(state: int, seed: int) -> int:
    """The token that follows `state`."""
    return mix(state, seed) % VOCAB_SIZE


def expected_answer(prompt: Sequence[int], max_tokens: int, seed: int = 0, stop: Sequence[int] = ()) -> list[int]:
    """What one request alone must get."""
    state = 0
    for token_id in prompt:
        state = mix(state, token_id)
    answer: list[int] = []
    while len(answer) < max_tokens:
        answer.append(next_token(state, seed))
        if answer[-1] in stop:
            break
        state = mix(state, answer[-1])
    return answer


def expected_prompt_logprobs(prompt: Sequence[int]) -> list[TokenLogprobs]:
    """What `prompt_logprobs` must give: one entry for each prompt token but the first."""
    state = 0
    entries = []
    for token_id, following in pairwise(prompt):
        state = mix(state, token_id)
        entries.append(_logprobs(state, following))
    return entries


def _logprobs(state: int, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -float(mix(state, token_id) % 1000), ())


class ChainRunner:
    """`steps.Runner` over a Python list; `failing` names sequences whose results are failures."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self.memory: list[int] = [0xDEAD] * (num_blocks * BLOCK_TOKENS)
        self.failing: set[int] = set()
        self.steps = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._num_blocks

    @property
    def lookahead(self) -> bool:
        """One step at a time."""
        return False

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Deferred:
        """Computed when the results are asked for."""
        return Deferred(self.compute, plan)

    def compute(self, plan: StepPlan, progress: Progress) -> list[SequenceResult]:
        """Compute the step."""
        self.steps += 1
        return [self._compute(step) for step in plan.sequences]

    def _compute(self, step: SequenceStep) -> SequenceResult:
        assert step.token_ids, "an empty chunk"
        covered = len(step.block_table) * BLOCK_TOKENS
        assert step.start + len(step.token_ids) <= covered, "the block table is too short"
        state = self.memory[self._slot(step, step.start - 1)] if step.start else 0
        scored = []
        known = (*step.token_ids[1:], step.next_prompt_token)
        for offset, token_id in enumerate(step.token_ids):
            state = mix(state, token_id)
            self.memory[self._slot(step, step.start + offset)] = state
            following = known[offset]
            if step.prompt_logprobs is not None and following is not None:
                scored.append(_logprobs(state, following))
        if step.sequence_id in self.failing:
            return SequenceResult(sequence_id=step.sequence_id, token_id=None, failure="logits are not finite")
        token = next_token(state, step.sampling.seed) if step.sample else None
        return SequenceResult(sequence_id=step.sequence_id, token_id=token, prompt_logprobs=tuple(scored))

    def _slot(self, step: SequenceStep, position: int) -> int:
        return step.block_table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
