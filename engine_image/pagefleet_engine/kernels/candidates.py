"""Penalties, top-k, top-p and min-p, and log-probabilities, in torch operations that never wait for the GPU."""

from typing import NamedTuple

import torch

from pagefleet_engine.kernels.sampling import sample
from pagefleet_engine.steps import MIN_TEMPERATURE

_ROWS_AT_ONCE = 32
"""Bounds the memory of a sort: a row of 131,072 tokens takes about 5 MB."""
_ROUNDING = 1e-9
"""Relative slack in comparing sums of the same weights that were added in another order."""


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


def restrict(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """A copy of `logits` [rows, vocab] float32 with -inf for the tokens that are cut off.

    By temperature-scaled likelihood: min-p, then top-k, then top-p over what they kept; of equal tokens the
    lower ids are kept. All parameters are [rows]; a `top_k` of 0, a `top_p` of 1 and a `min_p` of 0 cut nothing.
    The likeliest token always stays.
    """
    parameters = (logits, temperature, top_k, top_p, min_p)
    pieces = zip(*(tensor.split(_ROWS_AT_ONCE) for tensor in parameters), strict=True)
    return torch.cat([_restricted(*piece) for piece in pieces])


def _restricted(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    vocab = logits.shape[-1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    scaled = (ordered - ordered[:, :1]) / temperature.clamp(min=MIN_TEMPERATURE)[:, None]
    kept = scaled >= min_p.log()[:, None]
    ranks = torch.arange(vocab, device=logits.device)
    kept &= ranks < torch.where(top_k > 0, top_k, vocab)[:, None]
    weights = scaled.exp_().masked_fill_(~kept, 0.0).double()
    reached = weights.cumsum(-1)
    goal = torch.where(top_p >= 1, torch.inf, top_p.double() * reached[:, -1] * (1 - _ROUNDING))
    kept &= reached.sub_(weights) < goal[:, None]
    kept[:, 0] = True
    return torch.empty_like(logits).scatter_(1, order, ordered.masked_fill_(~kept, -torch.inf))


def restricted_sample(
    logits_rows: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """The next token of each row, int32, among what `restrict` keeps; drawn as `sampling.sample` draws.

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
