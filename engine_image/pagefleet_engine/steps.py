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

    Logits are changed in this order: `logit_bias`; `barred_token_ids` are not chosen for positions below
    `barred_before` (how a least number of tokens keeps stop tokens away); `repetition_penalty` divides the
    positive and multiplies the other logits of tokens in prompt or answer (Keskar et al. 2019, as in
    transformers); `frequency_penalty` is taken off for each time, `presence_penalty` once, of a token in the
    answer; then the temperature. `min_p` drops what is less likely than this share of the likeliest, then
    come `top_k` and `top_p`, each over what the one before kept.
    """

    seed: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    barred_token_ids: tuple[int, ...] = ()
    barred_before: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    top_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < MIN_TEMPERATURE

    @property
    def plain(self) -> bool:
        """Whether a temperature is all that it asks for."""
        cuts = self.top_k is not None or self.top_p < 1 or self.min_p > 0
        changes = bool(self.logit_bias) or bool(self.barred_token_ids) or self.penalises
        return self.top_logprobs is None and not changes and (self.greedy or not cuts)

    @property
    def penalises(self) -> bool:
        """Whether a token's logit depends on which tokens came before."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


class History(msgspec.Struct, frozen=True):
    """All tokens of a sequence; the first `prompt_tokens` of them are its prompt."""

    token_ids: tuple[int, ...]
    prompt_tokens: int


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence's share of a step: compute `token_ids` at positions `start`, `start + 1`, …

    `token_ids` None stands for one token: the one that the step launched before this samples for this
    sequence. Only runners with `lookahead` are given it.

    `block_table` covers at least positions 0 .. start + tokens - 1, 16 tokens a block. From one step to the
    next it only grows at its end, until the sequence loses its seat and `preemptions` goes up: then all of
    it is new. It may be a list that grows while the step is in flight; what was there never changes.

    With `sample` the logits after the last token give the next one; without it the chunk ends inside the
    prompt. `prompt_logprobs` asks, for each computed position whose next token is known, for that token's
    log-probability; `next_prompt_token` is the token after the chunk when it is still the prompt's.

    `history` comes with the step that ends a prefill, and with the first after a step that raised, where the
    sampling penalises: the tokens up to the one that this step samples. From there on the runner keeps it
    itself, token by token as the sequence decodes; a preempted sequence is prefilled again and its history
    told anew.

    `adapter` is the place in the launch of the LoRA adapter that computes the sequence, in all of its steps; None
    is the model itself.
    """

    sequence_id: int
    token_ids: tuple[int, ...] | None
    start: int
    block_table: Sequence[int]
    sample: bool
    sampling: Sampling
    prompt_logprobs: int | None = None
    next_prompt_token: int | None = None
    history: History | None = None
    preemptions: int = 0
    adapter: int | None = None

    @property
    def tokens(self) -> int:
        """How many tokens the sequence computes in this step."""
        return 1 if self.token_ids is None else len(self.token_ids)


class StepPlan(msgspec.Struct, frozen=True):
    """Everything that is computed in one step; never empty."""

    sequences: tuple[SequenceStep, ...]

    @property
    def batch_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(1 if step.token_ids is None else len(step.token_ids) for step in self.sequences)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probability of one token and of the likeliest ones at its position (natural logarithm).

    Taken from the model's own distribution, before temperature, min-p, top-k and top-p; for a generated token
    after logit bias, barred tokens and penalties, for a prompt's token without these.
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


class Pending(Protocol):
    """A step that was launched."""

    def results(self, progress: Progress = no_progress) -> Sequence[SequenceResult]:
        """One result for each sequence of the plan, in its order; waits until they are computed.

        Asked for once at most, and in the order of the launches. `progress` is called after each part of a
        long step.
        """
        ...


class GpuStatus(msgspec.Struct, frozen=True):
    """What a GPU's runner tells of itself; it counts its steps from its making on.

    A step has either replayed CUDA graphs or not. Of those that have, `replayed_rows` are all rows, `padding_rows` the
    ones among them that only fill a step up to a captured size. `allocated_bytes` is what tensors held of the GPU's
    memory when it was last looked at.
    """

    replayed_steps: int = 0
    other_steps: int = 0
    replayed_rows: int = 0
    padding_rows: int = 0
    allocated_bytes: int | None = None

    @property
    def steps(self) -> int:
        """All that were launched."""
        return self.replayed_steps + self.other_steps

    def replayed(self, rows: int, padding: int) -> "GpuStatus":
        """After one more step that has replayed graphs; `padding` of its `rows` are nobody's."""
        return GpuStatus(
            self.replayed_steps + 1, self.other_steps, self.replayed_rows + rows, self.padding_rows + padding,
            self.allocated_bytes,
        )  # fmt: skip

    def launched(self) -> "GpuStatus":
        """After one more step without graphs."""
        return GpuStatus(
            self.replayed_steps, self.other_steps + 1, self.replayed_rows, self.padding_rows, self.allocated_bytes
        )


class Runner(Protocol):
    """Owns the weights and the KV memory; everything else is values.

    Steps are computed one after the other in the order of their launches. Computing a step again gives the
    same. When `launch` or `results` raises, nobody asks for the other steps in flight any more, and with
    `lookahead` the next step names all its tokens and tells its histories; so what a runner keeps of a sequence
    from one step to the next can, and must, be given up then. Parts of that step may follow as steps of their
    own.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV pool."""
        ...

    @property
    def lookahead(self) -> bool:
        """Whether a step may be planned and launched while the one before is computed."""
        ...

    @property
    def gpu(self) -> GpuStatus | None:
        """How it stands; None where no GPU computes."""
        ...

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Pending:
        """Begin to compute the step. With `lookahead` one other step may be in flight, without it none."""
        ...

    def idle_work(self) -> bool:
        """Do a piece, well under a second, of what can wait until nobody asks for anything; False when none is left."""
        ...


class Deferred:
    """A step that is computed only when its results are asked for: what `launch` gives without lookahead."""

    def __init__(self, compute: Callable[[StepPlan, Progress], Sequence[SequenceResult]], plan: StepPlan) -> None:
        self._compute, self._plan = compute, plan

    def results(self, progress: Progress = no_progress) -> Sequence[SequenceResult]:
        """See `Pending`."""
        return self._compute(self._plan, progress)


def execute(runner: Runner, plan: StepPlan, progress: Progress = no_progress) -> Sequence[SequenceResult]:
    """Launch a step and wait for it; no other may be in flight."""
    return runner.launch(plan, progress).results(progress)


class RunnerBroken(Exception):
    """The runner can compute nothing any more; any other exception costs the steps in flight alone."""
