"""One request on its way through the scheduler."""

from pagefleet_api.sizing import blocks_for
from pagefleet_engine.kv.table import BlockTable
from pagefleet_engine.steps import History, SequenceResult, SequenceStep, TokenLogprobs
from pagefleet_engine.wire import Submit


class Sequence:
    """Tokens, blocks and progress of one request; owned and changed by the scheduler.

    `token_ids` is the prompt and what was generated, `computed` how many of them are in KV memory. Both a
    fresh prompt and a preempted answer are prefilled up to the end of `token_ids`, and the last logits
    give the next token; so recomputing repeats nothing that was delivered.

    `planned` is what `computed` will be once the steps in flight have been computed. When it reaches
    `len(token_ids)` the newest token is in flight too, and when it reaches `final_tokens` nothing is left to
    plan: the last token needs no place.
    """

    __slots__ = (
        "adapter",
        "computed",
        "counted_prompt_tokens",
        "decoding",
        "final_tokens",
        "history_told",
        "live",
        "paid_tokens",
        "planned",
        "preemptions",
        "prompt_tokens",
        "rank",
        "request",
        "sampling",
        "scored_prompt_tokens",
        "sequence_id",
        "stop_token_ids",
        "table",
        "token_ids",
        "token_limit",
        "was_admitted",
    )

    def __init__(self, request: Submit, table: BlockTable) -> None:
        self.request = request
        self.sequence_id = request.request_id
        self.sampling = request.sampling
        self.adapter = request.adapter
        self.table = table
        self.token_ids = list(request.prompt_token_ids)
        self.prompt_tokens = len(self.token_ids)
        self.token_limit = self.prompt_tokens + request.max_tokens
        self.final_tokens = max(self.token_limit - 1, self.prompt_tokens)
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.computed = 0
        self.planned = 0
        self.decoding = False
        """Planned up to its newest token: from here on one token a step."""
        self.live = True
        self.preemptions = 0
        self.history_told = not request.sampling.penalises
        self.was_admitted = False
        self.counted_prompt_tokens = 0
        """Prompt tokens already in the totals: recomputing does not count twice."""
        self.rank = (0, 0)
        """Its place among those who wait, in a line that goes by it; the smallest is first."""
        self.paid_tokens = 0
        """So many of its tokens are in its tenant's account."""
        self.scored_prompt_tokens = 1
        """Prompt tokens whose log-probability needs no telling any more; the first one has none."""

    @property
    def readable_tokens(self) -> int:
        """How many leading tokens may come from the prefix cache.

        Never all: the last one gives the logits. Prompt log-probabilities need every position computed
        once, so only positions whose successors were told already may be skipped.
        """
        if self.request.prompt_logprobs is None or self.scored_prompt_tokens == self.prompt_tokens:
            return len(self.token_ids) - 1
        return self.scored_prompt_tokens - 1

    @property
    def awaits_others(self) -> bool:
        """Whether others compute much of its prompt now."""
        return self.table.awaits(self.token_ids, self.readable_tokens)

    @property
    def uncached_tokens(self) -> int:
        """Of its tokens so far, those that must be computed as the prefix cache is now."""
        return len(self.token_ids) - self.table.known(self.token_ids, self.readable_tokens)

    @property
    def final_blocks(self) -> int:
        """Blocks that it holds when it has generated all it may."""
        return blocks_for(self.final_tokens)

    def take_seat(self, cached_tokens: int) -> None:
        """It holds blocks for all its tokens, and the first `cached_tokens` are computed."""
        self.computed = self.planned = cached_tokens

    def lose_seat(self) -> None:
        """Give the blocks back; a step in flight may still write to them and give a token, which counts."""
        self.table.release()
        self.computed = self.planned = 0
        self.decoding = False
        self.preemptions += 1

    def forget_flight(self) -> None:
        """Nobody asks for the steps in flight any more, and the runner knows nothing of it."""
        self.planned = self.computed
        self.decoding = self.prompt_tokens <= self.computed == len(self.token_ids) - 1
        self.history_told = not self.sampling.penalises

    def decode_step(self) -> SequenceStep:
        """Plan the newest token, which may still be in flight."""
        start = self.planned
        self.planned = start + 1
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=None if start == len(self.token_ids) else (self.token_ids[start],),
            start=start,
            block_table=self.table.blocks,
            sample=True,
            sampling=self.sampling,
            history=None if self.history_told else self._tell_history(),
            preemptions=self.preemptions,
            adapter=self.adapter,
        )

    def prefill_step(self, tokens: int) -> SequenceStep:
        """Plan the next `tokens` tokens, which must be there."""
        start, prompt_tokens = self.planned, self.prompt_tokens
        end = self.planned = start + tokens
        asks_logprobs = self.request.prompt_logprobs is not None and end >= self.scored_prompt_tokens
        asks_logprobs = asks_logprobs and self.scored_prompt_tokens < prompt_tokens and start < prompt_tokens - 1
        self.decoding = end == len(self.token_ids)
        samples = self.decoding and self.request.max_tokens > 0
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=tuple(self.token_ids[start:end]),
            start=start,
            block_table=self.table.blocks,
            sample=samples,
            sampling=self.sampling,
            prompt_logprobs=self.request.prompt_logprobs if asks_logprobs else None,
            next_prompt_token=self.token_ids[end] if asks_logprobs and end < prompt_tokens else None,
            history=self._tell_history() if samples and self.sampling.penalises else None,
            preemptions=self.preemptions,
            adapter=self.adapter,
        )

    def _tell_history(self) -> History:
        self.history_told = True
        return History(tuple(self.token_ids), self.prompt_tokens)

    def take_prompt_logprobs(self, step: SequenceStep, result: SequenceResult) -> tuple[TokenLogprobs, ...]:
        """Those of the step's prompt log-probabilities, which it asks for, that were not told before."""
        told = self.scored_prompt_tokens - step.start - 1
        self.scored_prompt_tokens = min(step.start + step.tokens + 1, self.prompt_tokens)
        return result.prompt_logprobs[told:]

    def append(self, token_id: int) -> str | None:
        """Take in the next token; why the sequence ends with it, or None when it goes on."""
        self.token_ids.append(token_id)
        if token_id in self.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) == self.token_limit else None
