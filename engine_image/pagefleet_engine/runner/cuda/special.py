"""What only some requests ask of the sampler: cuts, penalties, bias, log-probabilities. Nothing waits for the device.

A decode graph samples every row by temperature; rows that want more are sampled again from the same logits.
Everything works on a few rows at a time, so what it takes in memory does not depend on how many requests ask.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pagefleet_engine.kernels.candidates import penalise_, restricted_sample, token_logprobs
from pagefleet_engine.kernels.prepare import SeatState, keep_sampled
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.packing import Packed, SampledRow
from pagefleet_engine.runner.cuda.reading import NO_EXTRAS, Extras
from pagefleet_engine.steps import History, SequenceStep, TokenLogprobs

ROWS_AT_ONCE = 32
"""Rows of float32 logits, and their sorted copies, that are in memory at the same time."""
_FORBIDDEN = float("-inf")


@dataclass(frozen=True, slots=True)
class _Scores:
    """Log-probabilities on their way to the host: tokens and values [n], the likeliest ones [n, top]."""

    tokens: torch.Tensor
    values: torch.Tensor
    top_ids: torch.Tensor
    top_values: torch.Tensor

    def read(self) -> list[TokenLogprobs]:
        """After the step is done."""
        columns = (self.tokens.tolist(), self.values.tolist(), self.top_ids.tolist(), self.top_values.tolist())
        return [
            TokenLogprobs(token, value, tuple(zip(ids, values, strict=True)))
            for token, value, ids, values in zip(*columns, strict=True)
        ]


_Told = tuple[list[int], _Scores]
"""Sequence ids, and the scores of each."""


class SpecialRows:
    """Samples the rows whose requests ask for more than a temperature; keeps what penalties need by seat."""

    def __init__(self, decoder: CudaDecoder, state: SeatState, seats: int) -> None:
        vocabulary, device = decoder.config.vocab_size, decoder.device
        self._decoder, self._state, self._device = decoder, state, device
        # made now: a request that asks for penalties must not find the memory gone
        self._counts = torch.zeros((seats + 1, vocabulary), dtype=torch.int16, device=device)
        self._in_prompt = torch.zeros((seats + 1, vocabulary), dtype=torch.bool, device=device)
        self._prompt_scores: dict[int, list[_Scores]] = {}

    def sample(self, packed: Packed, logits: torch.Tensor, sampled: torch.Tensor) -> Extras:
        """Sample special rows of `logits` again into `sampled`; what to read when the step is done."""
        prompts, self._prompt_scores = self._prompt_scores, {}
        special = packed.special
        if not special and not prompts:
            return NO_EXTRAS
        found: list[_Told] = []
        for first in range(0, len(special), ROWS_AT_ONCE):
            part = special[first : first + ROWS_AT_ONCE]
            found += self._sample_part(part, [packed.sampling[index] for index in part], logits, sampled)
        return Extras(_reader(found), _prompt_reader(prompts))

    def score_prompts(self, packed: Packed, hidden: torch.Tensor) -> None:
        """Log-probabilities of the prompts' own tokens, for those that ask, from all rows of the step."""
        row = packed.decode_rows
        chunked = packed.steps[packed.decodes :]
        for step in chunked:
            if step.prompt_logprobs is not None:
                self._prompt_scores[step.sequence_id] = self._score(step, hidden[row : row + step.tokens])
            row += step.tokens

    def _score(self, step: SequenceStep, rows: torch.Tensor) -> list[_Scores]:
        following = list((step.token_ids or ())[1:])
        if step.next_prompt_token is not None:
            following.append(step.next_prompt_token)
        result = []
        room = torch.empty((ROWS_AT_ONCE, self._decoder.config.vocab_size), dtype=rows.dtype, device=self._device)
        for first in range(0, len(following), ROWS_AT_ONCE):
            tokens = self._to_device(following[first : first + ROWS_AT_ONCE], torch.int64)
            logits = self._decoder.logits(rows[first : first + len(tokens)].contiguous(), room[: len(tokens)])
            result.append(_scores(logits.float(), tokens, step.prompt_logprobs or 0))
        return result

    def _sample_part(
        self, places: Sequence[int], rows: Sequence[SampledRow], logits: torch.Tensor, sampled: torch.Tensor
    ) -> list[_Told]:
        at = self._to_device(places, torch.int64)
        seats = self._to_device([row.seat for row in rows], torch.int64)
        chosen = self._changed(logits.index_select(0, at).float(), rows, seats)
        tokens = self._drawn(chosen, rows, seats)
        sampled.index_copy_(0, at, tokens)
        keep_sampled(tokens, seats.to(torch.int32), self._state)
        self._count(rows, seats, tokens)
        return self._told(rows, chosen, tokens.long().clamp_(max=chosen.shape[1] - 1))

    def _told(self, rows: Sequence[SampledRow], logits: torch.Tensor, tokens: torch.Tensor) -> list[_Told]:
        """Those of one count together: which of equal tokens are told must not depend on the other rows."""
        by_count: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            if row.step.sampling.top_logprobs is not None:
                by_count.setdefault(row.step.sampling.top_logprobs, []).append(index)
        told: list[_Told] = []
        for count, indices in by_count.items():
            asking = self._to_device(indices, torch.int64)
            scores = _scores(logits[asking], tokens[asking], count)
            told.append(([rows[index].step.sequence_id for index in indices], scores))
        return told

    def _changed(self, logits: torch.Tensor, rows: Sequence[SampledRow], seats: torch.Tensor) -> torch.Tensor:
        """Bias, barred tokens and penalties, in this order."""
        edits = [(index, *edit) for index, row in enumerate(rows) for edit in _edits(row)]
        if edits:
            places, tokens, values = zip(*edits, strict=True)
            at = (self._to_device(places, torch.int64), self._to_device(tokens, torch.int64))
            logits.index_put_(at, self._to_device(values, torch.float32), accumulate=True)
        self._tell_histories(rows)
        if any(row.step.sampling.penalises for row in rows):
            asked = [row.step.sampling for row in rows]
            penalise_(
                logits, self._counts.index_select(0, seats), self._in_prompt.index_select(0, seats),
                repetition=self._to_device([one.repetition_penalty for one in asked], torch.float32),
                frequency=self._to_device([one.frequency_penalty for one in asked], torch.float32),
                presence=self._to_device([one.presence_penalty for one in asked], torch.float32),
            )  # fmt: skip
        return logits

    def _drawn(self, logits: torch.Tensor, rows: Sequence[SampledRow], seats: torch.Tensor) -> torch.Tensor:
        asked = [row.step.sampling for row in rows]
        return restricted_sample(
            logits,
            self._state.temperature.index_select(0, seats),
            self._to_device([one.top_k or 0 for one in asked], torch.int64),
            self._to_device([one.top_p for one in asked], torch.float32),
            self._to_device([one.min_p for one in asked], torch.float32),
            self._state.seeds.index_select(0, seats),
            self._to_device([row.position for row in rows], torch.int32),
        ).to(torch.int32)

    def _tell_histories(self, rows: Sequence[SampledRow]) -> None:
        for row in rows:
            history = row.step.history
            if history is not None:
                self._remember(row.seat, history)

    def _remember(self, seat: int, history: History) -> None:
        tokens = self._to_device(history.token_ids, torch.int64)
        prompt, answer = tokens[: history.prompt_tokens], tokens[history.prompt_tokens :]
        self._counts[seat].zero_()
        self._in_prompt[seat].zero_()
        self._in_prompt[seat].index_fill_(0, prompt, True)
        self._counts[seat].index_add_(0, answer, torch.ones_like(answer, dtype=torch.int16))

    def _count(self, rows: Sequence[SampledRow], seats: torch.Tensor, tokens: torch.Tensor) -> None:
        """Each penalised row's new token is part of its answer from now on."""
        if any(row.step.sampling.penalises for row in rows):
            found = tokens.long().clamp_(max=self._counts.shape[1] - 1)
            self._counts.index_put_((seats, found), torch.ones_like(tokens, dtype=torch.int16), accumulate=True)

    def _to_device(self, values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, pin_memory=self._device.type == "cuda").to(
            self._device, non_blocking=True
        )


def _edits(row: SampledRow) -> list[tuple[int, float]]:
    """What is added to which token's logit."""
    sampling = row.step.sampling
    barred = sampling.barred_token_ids if row.position < sampling.barred_before else ()
    return [*sampling.logit_bias, *((token_id, _FORBIDDEN) for token_id in barred)]


def _scores(logits: torch.Tensor, tokens: torch.Tensor, top: int) -> _Scores:
    """Started on their way to the host."""
    values, top_values, top_ids = token_logprobs(logits, tokens, top)
    return _Scores(*(tensor.to("cpu", non_blocking=True) for tensor in (tokens, values, top_ids, top_values)))


def _reader(found: Sequence[_Told]) -> Callable[[], Mapping[int, TokenLogprobs]]:
    def read() -> Mapping[int, TokenLogprobs]:
        return {key: entry for keys, scores in found for key, entry in zip(keys, scores.read(), strict=True)}

    return read


def _prompt_reader(
    prompts: Mapping[int, Sequence[_Scores]],
) -> Callable[[], Mapping[int, tuple[TokenLogprobs, ...] | None]]:
    def read() -> Mapping[int, tuple[TokenLogprobs, ...] | None]:
        return {key: _finite([entry for part in parts for entry in part.read()]) for key, parts in prompts.items()}

    return read


def _finite(entries: Sequence[TokenLogprobs]) -> tuple[TokenLogprobs, ...] | None:
    return None if any(entry.logprob != entry.logprob for entry in entries) else tuple(entries)
