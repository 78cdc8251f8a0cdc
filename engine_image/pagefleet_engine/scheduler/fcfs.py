"""Continuous batching in order of arrival: one token budget a step, decodes first, recompute preemption.

Sources: Orca (Yu et al., OSDI 2022) for iteration-level batches, Sarathi-Serve (Agrawal et al., OSDI 2024)
for chunked prefill beside decodes, PagedAttention (Kwon et al., SOSP 2023) for recompute preemption.
"""

from collections import deque
from collections.abc import Iterable

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.kv.pool import BlockPool, PoolCheck
from pagefleet_engine.kv.table import BlockTable
from pagefleet_engine.scheduler.admission import Capacity, refusal
from pagefleet_engine.scheduler.books import Books, Snapshot
from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.steps import Sampling, SequenceResult, SequenceStep, StepPlan
from pagefleet_engine.wire import Submit, TokenEvent

RESERVE_AFTER_PREEMPTIONS = 3
WATERMARK_SHARE = 100


class Scheduler:
    """Plans steps over the submitted requests and turns their results into events.

    One round is `schedule`, the runner, `complete`, `drain_events`; `submit`, `abort` and `drain_events` are
    legal at any moment between these. Every submitted request ends in exactly one event with a
    `finish_reason`.

    Invariant: those who decode, those who prefill and those who wait, in this order, are in order of
    arrival. Chunks go to the earliest first, admission takes the earliest of those waiting, preemption the
    latest of those seated; so nobody is overtaken and the earliest request always advances.
    And everybody seated advances in every step: a seat is only taken while the budget has a token left
    after all others had theirs, so there are never more seats than tokens, and at most one prompt is
    continued by the next step.
    """

    def __init__(
        self, capacity: Capacity, max_num_seqs: int, max_num_batched_tokens: int, *, prefix_cache: bool = True
    ) -> None:
        self._capacity = capacity
        self._prefix_cache = prefix_cache
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._watermark_blocks = -(-capacity.num_blocks // WATERMARK_SHARE)
        self._pool = BlockPool(capacity.num_blocks)
        self._books = Books()
        self._live: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._queued_tokens = 0
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._events: list[TokenEvent] = []

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._live)

    def submit(self, request: Submit) -> None:
        """Queue a request; one that cannot run even alone ends at once in an error that says why.

        A second request under a live id is dropped: the events of the first answer it.
        """
        if request.request_id in self._live:
            return
        if problem := self._problem(request):
            self._events.append(TokenEvent(request_id=request.request_id, finish_reason="error", error=problem))
            return
        sequence = Sequence(request, BlockTable(self._pool, request.cache_salt, shared=self._prefix_cache))
        self._live[request.request_id] = sequence
        self._waiting.append(sequence)
        self._queued_tokens += len(sequence.token_ids)

    def abort(self, request_ids: Iterable[int]) -> None:
        """End these requests wherever they are; unknown and finished ids mean nothing."""
        for request_id in request_ids:
            if sequence := self._live.get(request_id):
                self._end(sequence, "abort")
        self._waiting = deque(sequence for sequence in self._waiting if sequence.live)
        self._queued_tokens = sum(len(sequence.token_ids) for sequence in self._waiting)
        self._sweep_seats()

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nobody can run; decodes come first in it, then prefill chunks."""
        steps: list[SequenceStep] = []
        budget = self._plan_decodes(steps, self._max_num_batched_tokens)
        budget = self._plan_prefills(steps, budget)
        self._admit(steps, budget)
        self._books.left_waiting(len(self._waiting), self._queued_tokens)
        return StepPlan(tuple(steps)) if steps else None

    def complete(self, plan: StepPlan, results: Iterable[SequenceResult]) -> None:
        """Take in what the runner computed: one result for each sequence of the plan, in its order.

        A result without the token that its step asked for is a failure of that sequence.
        """
        ended = False
        for step, result in zip(plan.sequences, results, strict=True):
            sequence = self._live.get(step.sequence_id)
            if sequence is None:
                continue
            if result.failure is not None or (step.sample and result.token_id is None):
                self._fail(sequence, result.failure or "The runner gave no token.")
            elif sequence.decoding and result.token_id is not None:
                self._decoded(sequence, result.token_id, result)
            else:
                self._prefilled(sequence, step, result)
            ended = ended or not sequence.live
        if ended or self._prefilling:
            self._sweep_seats()

    def harmless_step(self) -> StepPlan | None:
        """One token for nobody, in a block that nobody references; None while all blocks are used.

        For finding out whether the runner still works; `complete` must not be told of it.
        """
        block = self._pool.take()
        if block is None:
            return None
        self._pool.release((block,))
        step = SequenceStep(
            sequence_id=0, token_ids=(0,), start=0, block_table=(block,), sample=True,
            sampling=Sampling(seed=0, temperature=0.0),
        )  # fmt: skip
        return StepPlan((step,))

    @property
    def has_events(self) -> bool:
        """Whether there is news."""
        return bool(self._events)

    def drain_events(self) -> tuple[TokenEvent, ...]:
        """The news since the last call, in the order it came up."""
        events, self._events = tuple(self._events), []
        return events

    def snapshot(self) -> Snapshot:
        """Counts for `CoreStatus`: what waits as of the latest pass, all else as of now."""
        return self._books.snapshot(self._pool, running=len(self._decoding) + len(self._prefilling))

    def check(self) -> PoolCheck:
        """Compare the pool's books with the block tables; costs O(blocks), so for idle times."""
        return self._pool.check(sequence.table.blocks for sequence in self._live.values())

    def _problem(self, request: Submit) -> str | None:
        prompt = request.prompt_token_ids
        size = self._capacity
        refused = refusal(len(prompt), request.max_tokens, size.max_model_len, size.num_blocks)
        if refused is not None:
            return refused.message
        if request.max_tokens < 0:
            return f"max_tokens is {request.max_tokens}; it must not be negative."
        if min(prompt) < 0 or max(prompt) >= size.vocab_size:
            return f"The prompt has token ids outside 0 .. {size.vocab_size - 1}."
        return None

    def _plan_decodes(self, steps: list[SequenceStep], budget: int) -> int:
        # Preemption takes from the end of the list, behind the sequence in hand or that one itself; so
        # nothing planned is ever preempted, and iterating over the shrinking list stays right.
        for sequence in self._decoding:
            if sequence.computed == sequence.table.capacity_tokens and not self._make_room(sequence):
                break
            steps.append(sequence.decode_step())
            budget -= 1
        return budget

    def _plan_prefills(self, steps: list[SequenceStep], budget: int) -> int:
        for sequence in self._prefilling:
            step = sequence.prefill_step(budget)
            steps.append(step)
            budget -= step.tokens
        return budget

    def _make_room(self, sequence: Sequence) -> bool:
        """A block for its next token, preempting the latest arrivals; False when that is itself."""
        while not sequence.table.grow():
            self._books.block_allocation_failures_total += 1
            if self._preempt_latest() is sequence:
                return False
        return True

    def _preempt_latest(self) -> Sequence:
        sequence = (self._prefilling or self._decoding).pop()
        sequence.table.release()
        sequence.computed = 0
        sequence.decoding = False
        sequence.preemptions += 1
        self._books.preemptions_total += 1
        self._waiting.appendleft(sequence)
        self._queued_tokens += len(sequence.token_ids)
        return sequence

    def _admit(self, steps: list[SequenceStep], budget: int) -> None:
        while self._waiting and budget:
            seated = len(self._decoding) + len(self._prefilling)
            if seated >= self._max_num_seqs:
                return
            sequence = self._waiting[0]
            cached = sequence.table.fill(
                sequence.token_ids, sequence.readable_tokens, self._headroom_blocks(sequence, seated)
            )
            if cached is None and seated:
                return
            self._waiting.popleft()
            self._queued_tokens -= len(sequence.token_ids)
            if cached is None:
                # It fits an empty pool by the rules of admission, so blocks have been lost.
                self._fail(sequence, "The KV cache has lost blocks; the request does not fit any more.")
                continue
            self._seat(sequence, cached)
            step = sequence.prefill_step(budget)
            steps.append(step)
            budget -= step.tokens

    def _headroom_blocks(self, sequence: Sequence, seated: int) -> int:
        """Blocks that must stay available when `sequence` takes its seat, so that it keeps it.

        One for the growth of each of those seated, more with each preemption; from the third on enough for
        all of them to reach their ends, which later arrivals cannot spoil: so nobody is preempted a fourth
        time. An empty pool always admits.
        """
        if seated == 0:
            return 0
        if sequence.preemptions < RESERVE_AFTER_PREEMPTIONS:
            return self._watermark_blocks + (1 + sequence.preemptions) * seated
        growth = sum(other.final_blocks - len(other.table.blocks) for other in (*self._decoding, *self._prefilling))
        return growth + sequence.final_blocks - blocks_for(len(sequence.token_ids))

    def _seat(self, sequence: Sequence, cached_tokens: int) -> None:
        self._books.admitted(sequence, cached_tokens)
        sequence.computed = cached_tokens
        if not sequence.was_admitted:
            sequence.was_admitted = True
            self._events.append(TokenEvent(request_id=sequence.sequence_id, cached_prompt_tokens=cached_tokens))
        self._prefilling.append(sequence)

    def _decoded(self, sequence: Sequence, token_id: int, result: SequenceResult) -> None:
        sequence.computed += 1
        if sequence.computed % BLOCK_TOKENS == 0:
            sequence.table.publish(sequence.token_ids, sequence.computed)
        finish_reason = sequence.append(token_id)
        self._events.append(
            TokenEvent(
                request_id=sequence.sequence_id,
                token_id=token_id,
                logprobs=result.logprobs,
                finish_reason=finish_reason,
            )
        )
        if finish_reason is not None:
            self._leave(sequence)

    def _prefilled(self, sequence: Sequence, step: SequenceStep, result: SequenceResult) -> None:
        sequence.computed = step.start + step.tokens
        sequence.table.publish(sequence.token_ids, sequence.computed)
        self._books.computed(sequence)
        prompt_logprobs = sequence.take_prompt_logprobs(step, result)
        finish_reason = None
        if step.sample and result.token_id is not None:
            finish_reason = sequence.append(result.token_id)
        elif sequence.computed == len(sequence.token_ids):
            finish_reason = "length"
        elif not prompt_logprobs:
            return
        self._events.append(
            TokenEvent(
                request_id=sequence.sequence_id,
                token_id=result.token_id,
                logprobs=result.logprobs,
                prompt_logprobs=prompt_logprobs,
                finish_reason=finish_reason,
            )
        )
        if finish_reason is not None:
            self._leave(sequence)

    def _fail(self, sequence: Sequence, message: str) -> None:
        """End in an error; what it computed may be wrong, so nobody may read it from the prefix cache."""
        sequence.table.disown()
        self._end(sequence, "error", message)

    def _end(self, sequence: Sequence, finish_reason: str, error: str | None = None) -> None:
        self._events.append(TokenEvent(request_id=sequence.sequence_id, finish_reason=finish_reason, error=error))
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Forget a sequence; its list is swept afterwards, once for all that leave together."""
        sequence.table.release()
        del self._live[sequence.sequence_id]
        sequence.live = False

    def _sweep_seats(self) -> None:
        started = [sequence for sequence in self._prefilling if sequence.live and sequence.decoding]
        self._prefilling = [sequence for sequence in self._prefilling if sequence.live and not sequence.decoding]
        self._decoding = [sequence for sequence in self._decoding if sequence.live]
        self._decoding += started
