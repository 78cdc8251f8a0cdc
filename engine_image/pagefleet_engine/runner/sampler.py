"""Chooses next tokens from logits.

Order: logit bias, barred tokens, penalties, then temperature, min-p, top-k, top-p (each over what the one
before kept; `steps.Sampling` says what they do). The draw is an
inverse CDF in token order with one uniform number per (seed, position), so a token does not depend on
which other sequences are in the batch.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagefleet_engine.runner.histories import Past
from pagefleet_engine.runner.noise import uniform
from pagefleet_engine.steps import Sampling, TokenLogprobs

FIRST_CANDIDATES = 1024
"""Top-p looks at this many likeliest tokens before it sorts the whole vocabulary."""
_ROUNDING = 1e-9
"""Relative slack in comparing sums of the same weights that were added in another order."""


class Draw(NamedTuple):
    """How one row's token is to be chosen; `position` is the new token's place in its sequence.

    `past` has the tokens before it where the sampling penalises.
    """

    sampling: Sampling
    position: int
    past: Past | None = None


class Choice(NamedTuple):
    """One row's token, or None where its logits are no numbers to choose by."""

    token_id: int | None
    logprobs: TokenLogprobs | None


def choose(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Choice]:
    """The next token of each row of `logits` ([rows, vocabulary], float32; bias and penalties change them)."""
    with torch.inference_mode():
        for row, draw in enumerate(draws):
            _add_bias(logits[row], draw.sampling)
            _bar(logits[row], draw)
            if draw.past is not None:
                _penalise(logits[row], draw.sampling, draw.past)
        likeliest = logits.max(dim=-1)
        tokens = likeliest.indices.tolist()
        usable = likeliest.values.isfinite().tolist()
        vocabulary = logits.shape[-1]
        random = [row for row, draw in enumerate(draws) if usable[row] and not draw.sampling.greedy]
        cut = [row for row in random if _cuts(draws[row].sampling, vocabulary)]
        uncut = [row for row in random if not _cuts(draws[row].sampling, vocabulary)]
        for rows, drawer in ((uncut, _draw_uncut), (cut, _draw_cut)):
            if rows:
                scaled = _scaled(logits, rows, draws)
                for row, token in zip(rows, drawer(scaled, [draws[row] for row in rows]), strict=True):
                    tokens[row], usable[row] = token, 0 <= token < vocabulary
        logprobs = _chosen_logprobs(logits, draws, tokens, usable)
    return [Choice(token if usable[row] else None, logprobs.get(row)) for row, token in enumerate(tokens)]


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Log-probabilities of `token_ids` (one per row) and of the `top` likeliest tokens of each row.

    `logits` is [rows, vocabulary]; natural logarithm, float32.
    """
    with torch.inference_mode():
        logprobs = logits.float().log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])[:, 0].tolist()
        best = logprobs.topk(min(top, logits.shape[-1]), dim=-1)
        values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprobs(token_id, chosen[row], tuple(zip(ids[row], values[row], strict=True)))
        for row, token_id in enumerate(token_ids)
    ]


def _add_bias(row: torch.Tensor, sampling: Sampling) -> None:
    if sampling.logit_bias:
        ids, biases = zip(*sampling.logit_bias, strict=True)
        added = torch.tensor(biases, dtype=row.dtype, device=row.device)
        row.index_add_(0, torch.tensor(ids, device=row.device), added)


def _bar(row: torch.Tensor, draw: Draw) -> None:
    if draw.position < draw.sampling.barred_before:
        row.index_fill_(
            0, torch.tensor(draw.sampling.barred_token_ids, dtype=torch.int64, device=row.device), -math.inf
        )


def _penalise(row: torch.Tensor, sampling: Sampling, past: Past) -> None:
    if sampling.repetition_penalty != 1:
        ids = past.seen().to(row.device)
        found, penalty = row[ids], sampling.repetition_penalty
        row[ids] = torch.where(found > 0, found / penalty, found * penalty)
    if sampling.frequency_penalty != 0 or sampling.presence_penalty != 0:
        ids, counts = (each.to(row.device) for each in past.generated())
        row[ids] -= counts.to(row.dtype) * sampling.frequency_penalty + sampling.presence_penalty


def _cuts(sampling: Sampling, vocabulary: int) -> bool:
    return (sampling.top_k or vocabulary) < vocabulary or not sampling.top_p >= 1 or sampling.min_p > 0


def _scaled(logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> torch.Tensor:
    """Rows over their temperature, the largest at 0: no temperature from `MIN_TEMPERATURE` on is too small."""
    chosen_temperatures = [[draws[row].sampling.temperature] for row in rows]
    temperatures = torch.tensor(chosen_temperatures, dtype=logits.dtype, device=logits.device)
    chosen = logits[list(rows)]
    return chosen.sub_(chosen.amax(-1, keepdim=True)).div_(temperatures)


def _draw_uncut(scaled: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token a row; the vocabulary's size, which is no token, where the row's weights are no numbers."""
    tokens: list[int] = _inverse_cdf(scaled.exp_(), draws).tolist()
    return tokens


def _draw_cut(scaled: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Rows of one top-k together: which of equal logits are kept must not depend on the other rows.

    -1, which is no token, where the row's weights are no numbers.
    """
    vocabulary = scaled.shape[-1]
    _drop_unlikely(scaled, draws)
    by_limit: dict[int, list[int]] = {}
    for row, draw in enumerate(draws):
        by_limit.setdefault(min(draw.sampling.top_k or vocabulary, vocabulary), []).append(row)
    tokens = [0] * len(draws)
    for limit, rows in by_limit.items():
        if limit < vocabulary:
            found = _draw_among(scaled[rows], [draws[row] for row in rows], limit, None)
        else:
            total = scaled[rows].exp_().double().sum(-1, keepdim=True)
            found = _draw_among(scaled[rows], [draws[row] for row in rows], FIRST_CANDIDATES, total)
        for row, token in zip(rows, found, strict=True):
            tokens[row] = token
    return tokens


def _drop_unlikely(scaled: torch.Tensor, draws: Sequence[Draw]) -> None:
    """Min-p: the likeliest token of each row is at 0, so that the least logit is the share's logarithm."""
    for row, draw in enumerate(draws):
        if draw.sampling.min_p > 0:
            scaled[row].masked_fill_(scaled[row] < math.log(draw.sampling.min_p), -math.inf)


def _draw_among(scaled: torch.Tensor, draws: Sequence[Draw], count: int, total: torch.Tensor | None) -> list[int]:
    """Draw with top-p among the `count` likeliest tokens; `total` is the weight of all, None for theirs.

    Rows in which these do not reach top-p are drawn among all tokens.
    """
    count = min(count, scaled.shape[-1])
    best = scaled.topk(count, dim=-1)
    weights = best.values.exp_().double()
    reached = weights.cumsum(-1)
    top_p = torch.tensor([[draw.sampling.top_p] for draw in draws], dtype=torch.float64, device=weights.device)
    goal = top_p * (reached[:, -1:] if total is None else total) * (1 - _ROUNDING)
    before = reached - weights
    before[:, 0] = -1.0  # the likeliest token always stays
    ids, order = best.indices.sort(dim=-1)
    drawn = _inverse_cdf(weights.masked_fill(before >= goal, 0.0).gather(1, order), draws)
    found = ids.gather(1, drawn.clamp(max=count - 1)[:, None])[:, 0]
    tokens: list[int] = found.masked_fill(drawn == count, -1).tolist()
    short = [row for row, missed in enumerate((reached[:, -1:] < goal)[:, 0].tolist()) if missed]
    if short and count < scaled.shape[-1]:
        widest = _draw_among(scaled[short], [draws[row] for row in short], scaled.shape[-1], None)
        for row, token in zip(short, widest, strict=True):
            tokens[row] = token
    return tokens


def _inverse_cdf(weights: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Column of each row at which the cumulative weight passes the row's uniform number.

    One more than the last column where the weights are no numbers.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    noise = [[uniform(draw.sampling.seed, draw.position)] for draw in draws]
    goal = torch.tensor(noise, dtype=torch.float64, device=weights.device) * total
    below_total = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulative, torch.minimum(goal, below_total), right=True)[:, 0]


def _chosen_logprobs(
    logits: torch.Tensor, draws: Sequence[Draw], tokens: Sequence[int], usable: Sequence[bool]
) -> dict[int, TokenLogprobs]:
    """By row; those of one count together: which of equal tokens are told must not depend on the other rows."""
    by_count: dict[int, list[int]] = {}
    for row, draw in enumerate(draws):
        if draw.sampling.top_logprobs is not None and usable[row]:
            by_count.setdefault(draw.sampling.top_logprobs, []).append(row)
    found: dict[int, TokenLogprobs] = {}
    for count, rows in by_count.items():
        entries = token_logprobs(logits[rows], [tokens[row] for row in rows], count)
        found |= zip(rows, entries, strict=True)
    return found
