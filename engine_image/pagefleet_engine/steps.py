"""One engine step in values: the scheduler plans it, the runner computes it, the loop delivers it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

MIN_TEMPERATURE = 1e-5
"""Below it a token is chosen greedily: all but near ties is certain there, and in float32 1e-46 is 0."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token of one sequence is chosen.

    A `temperature` below `MIN_TEMPERATURE` is greedy. Noise depends on `seed` and the token's position
    alone, so an answer is the same in any batch and after a preemption. `top_logprobs` None asks for none,
    0 for the chosen token's.
    """

    seed: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < MIN_TEMPERATURE


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence's share of a step: compute `token_ids` at positions `start`, `start + 1`, …

    `block_table` covers at least positions 0 .. start + len(token_ids) - 1, 16 tokens a block. With
    `sample` the logits after the last token give the next one; without it the chunk ends inside the prompt.
    `prompt_logprobs` asks, for each computed position whose next token is known, for that token's
    log-probability; `next_prompt_token` is the token after the chunk when it is still the prompt's.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    sample: bool
    sampling: Sampling
    prompt_logprobs: int | None = None
    next_prompt_token: int | None = None


class StepPlan(msgspec.Struct, frozen=True):
    """Everything that is computed in one step; never empty."""

    sequences: tuple[SequenceStep, ...]

    @property
    def batch_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probability of one token and of the likeliest ones at its position (natural logarithm).

    Taken from the model's own distribution, before temperature, top-k and top-p; for a generated token after
    logit bias, for a prompt's token without it.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class SequenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step gave for one sequence; `token_id` is None for a chunk that ends inside the prompt."""

    sequence_id: int
    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    failure: str | None = None


Progress = Callable[[], None]
"""Told that a long piece of work goes on."""


def no_progress() -> None:
    """Nobody waits for news."""


class Runner(Protocol):
    """Owns the weights and the KV memory; everything else is values."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""
        ...

    def execute(self, plan: StepPlan, progress: Progress = no_progress) -> Sequence[SequenceResult]:
        """Compute the step; one result for each sequence of the plan, in its order.

        Computing a step again gives the same. `progress` is called after each part of a long step.
        """
        ...


class RunnerBroken(Exception):
    """The runner can compute nothing any more; any other exception of `execute` costs that step alone."""
