"""Steps that take as much memory as any that the scheduler can plan. Pure."""

from collections.abc import Iterator

from pagefleet_api.sizing import blocks_for
from pagefleet_engine.steps import Sampling, SequenceStep, StepPlan

SHORT_TOKENS = 8
LONG_CONTEXT = 2048
RARE_CHUNKS = (16, 32)
"""With tiles of few rows and with tiles of many."""
_WISHES = Sampling(seed=1, temperature=1.0, top_k=64, top_p=0.9, top_logprobs=20, frequency_penalty=0.5)


def largest_steps(batch_tokens: int, max_num_seqs: int, max_model_len: int) -> Iterator[StepPlan]:
    """One that is full of prompts, the first of which wants log-probabilities; one of many small ones that all
    sample with every wish; and a short one, which other kernels compute."""
    prompts: list[SequenceStep] = []
    left = batch_tokens
    while left > 0 and len(prompts) < max_num_seqs:
        tokens = min(left, max(max_model_len - 1, 1))
        prompts.append(_prompt(len(prompts), tokens, prompt_logprobs=20 if not prompts else None))
        left -= tokens
    yield StepPlan(tuple(prompts))
    seats = min(max_num_seqs, batch_tokens)
    share = max(min(batch_tokens // seats, max_model_len - 1), 1)
    first = len(prompts)
    yield StepPlan(tuple(_prompt(first + index, share, prompt_logprobs=None) for index in range(seats)))
    yield StepPlan((_prompt(first + seats, min(SHORT_TOKENS, max_model_len), prompt_logprobs=None),))


def rare_steps(max_model_len: int, block: int, batch_tokens: int) -> Iterator[StepPlan]:
    """Short chunks after long contexts, for which the attention has kernels of its own; all of them in `block`.

    Without these such a kernel would be compiled while the first request that needs it, and all others, wait.
    """
    context = min(LONG_CONTEXT, max_model_len)
    for tokens in RARE_CHUNKS:
        if tokens <= min(batch_tokens, context):
            step = SequenceStep(
                sequence_id=-1, token_ids=(0,) * tokens, start=context - tokens, sample=True,
                block_table=(block,) * blocks_for(context), sampling=Sampling(seed=0, temperature=0.0),
            )  # fmt: skip
            yield StepPlan((step,))


def _prompt(sequence_id: int, tokens: int, *, prompt_logprobs: int | None) -> SequenceStep:
    return SequenceStep(
        sequence_id=sequence_id, token_ids=(0,) * tokens, start=0, block_table=(0,) * blocks_for(tokens),
        sample=True, sampling=_WISHES, prompt_logprobs=prompt_logprobs,
    )  # fmt: skip
