"""What the scheduler counts about itself, for `wire.CoreStatus`."""

from dataclasses import dataclass
from typing import NamedTuple

from pagefleet_engine.kv.pool import BlockPool
from pagefleet_engine.scheduler.sequence import Sequence


class Snapshot(NamedTuple):
    """The scheduler's part of `wire.CoreStatus`, field by field under the same names."""

    running: int
    waiting: int
    queued_prompt_tokens: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    prompt_tokens_computed_total: int
    prompt_tokens_cached_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    preemptions_total: int
    block_allocation_failures_total: int
    prefill_tokens_total: int
    decode_tokens_total: int


@dataclass(slots=True)
class Books:
    """Running totals, and the queue as the latest pass left it.

    A prompt token is counted once, as computed or as cached, however often preemption makes it be
    computed again; the prefix cache's queries and hits (in tokens) are those of first admissions. Prefill and
    decode tokens are the work of steps as it was planned.
    """

    waiting: int = 0
    queued_prompt_tokens: int = 0
    prompt_tokens_computed_total: int = 0
    prompt_tokens_cached_total: int = 0
    prefix_queries_total: int = 0
    prefix_hits_total: int = 0
    preemptions_total: int = 0
    block_allocation_failures_total: int = 0
    prefill_tokens_total: int = 0
    decode_tokens_total: int = 0

    def left_waiting(self, sequences: int, tokens: int) -> None:
        """A pass has ended and gave these no seat."""
        self.waiting = sequences
        self.queued_prompt_tokens = tokens

    def admitted(self, sequence: Sequence, cached_tokens: int) -> None:
        """A sequence took its seat, and this many of its tokens need not be computed."""
        if not sequence.was_admitted and sequence.request.prompt_logprobs is None:
            self.prefix_queries_total += sequence.prompt_tokens
            self.prefix_hits_total += cached_tokens
        news = min(cached_tokens, sequence.prompt_tokens) - sequence.counted_prompt_tokens
        if news > 0:
            self.prompt_tokens_cached_total += news
            sequence.counted_prompt_tokens += news

    def computed(self, sequence: Sequence) -> None:
        """A sequence's `computed` has moved on."""
        news = min(sequence.computed, sequence.prompt_tokens) - sequence.counted_prompt_tokens
        if news > 0:
            self.prompt_tokens_computed_total += news
            sequence.counted_prompt_tokens += news

    def snapshot(self, pool: BlockPool, running: int) -> Snapshot:
        """All counts at once."""
        return Snapshot(
            running=running,
            waiting=self.waiting,
            queued_prompt_tokens=self.queued_prompt_tokens,
            blocks_used=pool.used,
            blocks_cached=pool.cached,
            blocks_free=pool.free,
            prompt_tokens_computed_total=self.prompt_tokens_computed_total,
            prompt_tokens_cached_total=self.prompt_tokens_cached_total,
            prefix_queries_total=self.prefix_queries_total,
            prefix_hits_total=self.prefix_hits_total,
            preemptions_total=self.preemptions_total,
            block_allocation_failures_total=self.block_allocation_failures_total,
            prefill_tokens_total=self.prefill_tokens_total,
            decode_tokens_total=self.decode_tokens_total,
        )
