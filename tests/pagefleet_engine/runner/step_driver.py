"""Drives a runner without the scheduler: sequences with scattered blocks, steps put together by the test."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pagefleet_api.sizing import blocks_for
from pagefleet_engine.steps import History, Runner, Sampling, SequenceResult, SequenceStep, StepPlan, execute

GREEDY = Sampling(seed=0, temperature=0.0)


@dataclass
class DrivenSequence:
    """Tokens known so far, of which the first `computed` are in the KV memory."""

    sequence_id: int
    tokens: list[int]
    blocks: tuple[int, ...]
    sampling: Sampling = GREEDY
    prompt_logprobs: int | None = None
    adapter: int | None = None
    computed: int = 0
    results: list[SequenceResult] = field(default_factory=list)
    prompt_length: int = 0

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def answer(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt_length :]

    def step(self, limit: int | None = None) -> SequenceStep:
        """The next `limit` tokens that are not computed yet, or all of them."""
        end = len(self.tokens) if limit is None else min(self.computed + limit, len(self.tokens))
        more = end < len(self.tokens)
        tells = self.sampling.penalises and not more and (self.computed == 0 or end - self.computed > 1)
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=tuple(self.tokens[self.computed : end]),
            start=self.computed,
            block_table=self.blocks[: blocks_for(end)],
            sample=not more,
            sampling=self.sampling,
            prompt_logprobs=self.prompt_logprobs,
            next_prompt_token=self.tokens[end] if more else None,
            history=History(tuple(self.tokens), self.prompt_length) if tells else None,
            adapter=self.adapter,
        )


def sequences(
    prompts: Sequence[Sequence[int]],
    num_blocks: int,
    room: int,
    sampling: Sequence[Sampling] | None = None,
    shuffle_seed: int = 0,
) -> list[DrivenSequence]:
    """One sequence a prompt, each with scattered blocks for the prompt and `room` more tokens."""
    free = list(range(num_blocks))
    random.Random(shuffle_seed).shuffle(free)
    made = []
    for index, prompt in enumerate(prompts):
        needed = blocks_for(len(prompt) + room)
        blocks, free = tuple(free[:needed]), free[needed:]
        chosen = GREEDY if sampling is None else sampling[index]
        made.append(DrivenSequence(index, list(prompt), blocks, chosen))
    return made


def advance(runner: Runner, steps: Iterable[tuple[DrivenSequence, int | None]]) -> None:
    """Execute one step of these sequences, each limited to some tokens, and keep what it gave."""
    chosen = list(steps)
    plan = StepPlan(tuple(sequence.step(limit) for sequence, limit in chosen))
    results = execute(runner, plan)
    assert [result.sequence_id for result in results] == [step.sequence_id for step in plan.sequences]
    for (sequence, _), step, result in zip(chosen, plan.sequences, results, strict=True):
        assert result.failure is None, result.failure
        assert (result.token_id is not None) == step.sample
        sequence.computed += step.tokens
        sequence.results.append(result)
        if result.token_id is not None:
            sequence.tokens.append(result.token_id)


def run_batched(runner: Runner, batch: Sequence[DrivenSequence], count: int) -> None:
    """All in every step: whole prompts first, then one token each."""
    for _ in range(count):
        advance(runner, [(sequence, None) for sequence in batch])


def run_interleaved(runner: Runner, batch: Sequence[DrivenSequence], count: int, chunk: int = 7) -> None:
    """Sequences join one after the other with chunked prompts while earlier ones decode."""
    waiting, running = list(batch), list[DrivenSequence]()
    while waiting or any(len(sequence.answer) < count for sequence in running):
        if waiting:
            running.append(waiting.pop(0))
        unfinished = [sequence for sequence in running if len(sequence.answer) < count]
        advance(runner, [(sequence, chunk) for sequence in unfinished])
