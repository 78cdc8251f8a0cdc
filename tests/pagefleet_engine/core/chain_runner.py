"""A runner without a model that still finds out whether scheduler and block tables are right.

As in a transformer, what is stored at a position depends on everything before it, and is read back through
the block table: `memory[slot] = mix(memory[slot of the position before], token)`, where each adapter takes a token for
another one. The next token is drawn from the last state, so one wrong block anywhere changes the answer;
`expected_answer` computes it without any memory. Nothing may read a slot that was not written since its block changed
hands.
"""

from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.steps import (
    Deferred,
    GpuStatus,
    Pending,
    Progress,
    RunnerBroken,
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


def read_by(adapter: int | None, token_id: int) -> int:
    """What an adapter, or the model itself, takes a token for."""
    return token_id if adapter is None else token_id + VOCAB_SIZE * (adapter + 1)


def next_token(state: int, seed: int) -> int:
    """The token that follows `state`."""
    return mix(state, seed) % VOCAB_SIZE


def expected_answer(
    prompt: Sequence[int], max_tokens: int, seed: int = 0, stop: Sequence[int] = (), adapter: int | None = None
) -> list[int]:
    """What one request alone must get."""
    state = 0
    for token_id in prompt:
        state = mix(state, read_by(adapter, token_id))
    answer: list[int] = []
    while len(answer) < max_tokens:
        answer.append(next_token(state, seed))
        if answer[-1] in stop:
            break
        state = mix(state, read_by(adapter, answer[-1]))
    return answer


def expected_prompt_logprobs(prompt: Sequence[int], adapter: int | None = None) -> list[TokenLogprobs]:
    """What `prompt_logprobs` must give: one entry for each prompt token but the first."""
    state = 0
    entries = []
    for token_id, following in pairwise(prompt):
        state = mix(state, read_by(adapter, token_id))
        entries.append(_logprobs(state, following))
    return entries


def _logprobs(state: int, token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -float(mix(state, token_id) % 1000), ())


class Computed:
    """A step that was computed when it was launched; what went wrong then is raised when it is asked for."""

    def __init__(self, results: list[SequenceResult] | Exception) -> None:
        self._results = results

    def results(self, progress: Progress = no_progress) -> list[SequenceResult]:
        """See `Pending`."""
        if isinstance(self._results, Exception):
            raise self._results
        return self._results


class ChainRunner:
    """`steps.Runner` over a Python list; `failing` names sequences whose results are failures.

    With lookahead it computes in the order of the launches, like a GPU's stream, and remembers the token that
    each sequence of the latest step sampled.
    """

    def __init__(self, num_blocks: int, *, lookahead: bool = False) -> None:
        self._num_blocks, self._lookahead = num_blocks, lookahead
        self.memory: list[int] = [0xDEAD] * (num_blocks * BLOCK_TOKENS)
        self.failing: set[int] = set()
        self.steps = 0
        self.gpu: GpuStatus | None = None
        self._sampled: dict[int, int] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._num_blocks

    @property
    def lookahead(self) -> bool:
        """See `Runner`."""
        return self._lookahead

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Pending:
        """Computed at once with lookahead, else when the results are asked for."""
        if not self._lookahead:
            return Deferred(self.compute, plan)
        try:
            return Computed(self.compute(plan, no_progress))
        except RunnerBroken:
            raise
        except Exception as error:
            self._sampled.clear()
            return Computed(error)

    def forget(self) -> None:
        """Nothing is known of any sequence any more; what is in memory stays."""
        self._sampled.clear()

    def idle_work(self) -> bool:
        """Nothing waits."""
        return False

    def compute(self, plan: StepPlan, progress: Progress) -> list[SequenceResult]:
        """Compute the step."""
        self.steps += 1
        results = [self._compute(step) for step in plan.sequences]
        self._sampled = {r.sequence_id: 0 if r.token_id is None else r.token_id for r in results}
        return results

    def _compute(self, step: SequenceStep) -> SequenceResult:
        token_ids = (self._sampled[step.sequence_id],) if step.token_ids is None else step.token_ids
        assert token_ids, "an empty chunk"
        covered = len(step.block_table) * BLOCK_TOKENS
        assert step.start + len(token_ids) <= covered, "the block table is too short"
        state = self.memory[self._slot(step, step.start - 1)] if step.start else 0
        scored = []
        known = (*token_ids[1:], step.next_prompt_token)
        for offset, token_id in enumerate(token_ids):
            state = mix(state, read_by(step.adapter, token_id))
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
