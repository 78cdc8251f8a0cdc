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
    """

    __slots__ = (
        "computed",
        "counted_prompt_tokens",
        "decoding",
        "live",
        "preemptions",
        "prompt_tokens",
        "request",
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
        self.table = table
        self.token_ids = list(request.prompt_token_ids)
        self.prompt_tokens = len(self.token_ids)
        self.token_limit = self.prompt_tokens + request.max_tokens
        self.stop_token_ids = frozenset(request.stop_token_ids)
        self.computed = 0
        self.decoding = False
        self.live = True
        self.preemptions = 0
        self.was_admitted = False
        self.counted_prompt_tokens = 0
        """Prompt tokens already in the totals: recomputing does not count twice."""
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
    def final_blocks(self) -> int:
        """Blocks that it holds when it has generated all it may; the last token is never computed."""
        return blocks_for(max(self.token_limit - 1, self.prompt_tokens))

    def decode_step(self) -> SequenceStep:
        """The step that computes the newest token."""
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=(self.token_ids[-1],),
            start=self.computed,
            block_table=self.table.blocks,
            sample=True,
            sampling=self.request.sampling,
        )

    def prefill_step(self, budget_tokens: int) -> SequenceStep:
        """The step that computes up to `budget_tokens` tokens more."""
        start = self.computed
        end = min(start + budget_tokens, len(self.token_ids))
        asks_logprobs = self.request.prompt_logprobs is not None and end >= self.scored_prompt_tokens
        asks_logprobs = asks_logprobs and self.scored_prompt_tokens < self.prompt_tokens
        samples = end == len(self.token_ids) and self.request.max_tokens > 0
        return SequenceStep(
            sequence_id=self.sequence_id,
            token_ids=tuple(self.token_ids[start:end]),
            start=start,
            block_table=self.table.blocks,
            sample=samples,
            sampling=self.request.sampling,
            prompt_logprobs=self.request.prompt_logprobs if asks_logprobs else None,
            next_prompt_token=self.token_ids[end] if asks_logprobs and end < self.prompt_tokens else None,
            history=self._history() if samples and self.request.sampling.penalises else None,
        )

    def _history(self) -> History:
        return History(tuple(self.token_ids), self.prompt_tokens)

    def take_prompt_logprobs(self, step: SequenceStep, result: SequenceResult) -> tuple[TokenLogprobs, ...]:
        """Those of the step's prompt log-probabilities that were not told before."""
        if step.prompt_logprobs is None:
            return ()
        told = self.scored_prompt_tokens - step.start - 1
        self.scored_prompt_tokens = min(step.start + step.tokens + 1, self.prompt_tokens)
        return result.prompt_logprobs[told:]

    def append(self, token_id: int) -> str | None:
        """Take in the next token; why the sequence ends with it, or None when it goes on."""
        self.token_ids.append(token_id)
        self.decoding = True
        if token_id in self.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) == self.token_limit else None
