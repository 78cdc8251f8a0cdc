"""What some requests want beside a plain draw: penalties, cuts and log-probabilities; nothing waits for the GPU."""

from typing import NamedTuple

import torch

from pagefleet_engine.kernels.cuts import restrict
from pagefleet_engine.kernels.sampling import sample


class Logprobs(NamedTuple):
    """Natural logarithms: `chosen` [rows], and the likeliest `top` [rows, n] with their `top_tokens`."""

    chosen: torch.Tensor
    top: torch.Tensor
    top_tokens: torch.Tensor


def penalise_(
    logits: torch.Tensor,
    counts: torch.Tensor,
    prompt_mask: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Change `logits` [rows, vocab] float32 in place as `steps.Sampling` says.

    `counts` [rows, vocab] integers: how often the answer has each token; `prompt_mask` bool: which ones the
    prompt has; the penalties are float32 [rows].
    """
    answered = counts > 0
    factor = torch.where(logits > 0, 1.0 / repetition[:, None], repetition[:, None])
    logits.mul_(factor.masked_fill_(~(answered | prompt_mask), 1.0))
    logits.sub_(counts * frequency[:, None]).sub_(answered * presence[:, None])


def restricted_sample(
    logits_rows: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """The next token of each row, int32, among what `cuts.restrict` keeps; drawn as `sampling.sample` draws.

    Where nothing is cut the token is the same as `sample`'s. A row that cannot be drawn from gives the
    vocabulary's size.
    """
    tokens = torch.empty(len(logits_rows), dtype=torch.int32, device=logits_rows.device)
    if len(logits_rows):
        kept = restrict(logits_rows, temperature, top_k, top_p, min_p)
        sample(kept, temperature, seeds, positions, tokens)
    return tokens


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor, top_n: int) -> Logprobs:
    """Log-probabilities of `tokens` [rows] and of the `top_n` likeliest ones, from `logits` [rows, vocab]."""
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, tokens.long()[:, None])[:, 0]
    top = logprobs.topk(min(top_n, logits.shape[-1]), dim=-1)
    return Logprobs(chosen, top.values, top.indices)
