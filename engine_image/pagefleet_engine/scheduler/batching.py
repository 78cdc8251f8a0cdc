"""Continuous batching, in order of arrival or another: one token budget a step, decodes first, recompute preemption.

Sources: Orca (Yu et al., OSDI 2022) for iteration-level batches, Sarathi-Serve (Agrawal et al., OSDI 2024)
for chunked prefill beside decodes, PagedAttention (Kwon et al., SOSP 2023) for recompute preemption.
"""

from collections.abc import Iterable

from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_engine.kv.pool import BlockPool, PoolCheck
from pagefleet_engine.kv.table import BlockTable
from pagefleet_engine.scheduler.admission import Capacity, problem
from pagefleet_engine.scheduler.books import Books, Snapshot
from pagefleet_engine.scheduler.pace import Pace, StepBudget
from pagefleet_engine.scheduler.policies import FCFS, Policy
from pagefleet_engine.scheduler.seats import Seats
from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.steps import Sampling, SequenceResult, SequenceStep, StepPlan
from pagefleet_engine.wire import Submit, TokenEvent

NOBODY = (1 << 63) - 1
"""The sequence id of a step that nobody asked for."""


class Scheduler:
    """Plans steps over the submitted requests and turns their results into events.

    One round is `schedule`, the runner, `complete`, `drain_events`; `submit`, `abort` and `drain_events` are
    legal at any moment between these. Every submitted request ends in exactly one event with a
    `finish_reason`.

    With lookahead the next `schedule` comes before the `complete` of the plan before; results are taken in in
    the order of the plans, and at most one plan is in flight when the next is made. Blocks are given back at
    once all the same, though a step in flight may still write to them: it writes to places of its own
    sequence that are not computed yet, hence never in the prefix cache; and as steps are computed in the order
    of their launches, it has written before any step that is planned later writes there for a new owner, and
    nobody reads a place before its own step has written it.

    Invariant: those who decode, then those who prefill are in the order of their seating, those who wait in the
    policy's (see `Seats`, `Policy`); by arrival all three are one order. Only who waits for what others compute of its
    prompt may be passed. Preemption takes the last of those seated, so the first of all always advances.
    And everybody seated advances in every step, but for those whose last token is in flight: a seat is only taken while
    the budget has a token left after all others had theirs, so there are never more seats than tokens, and at most one
    prompt is continued by the next step. (After a `rollback` more such prompts may advance one after the other.)
    """

    def __init__(
        self,
        capacity: Capacity,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        prefix_cache: bool = True,
        pace: Pace | None = None,
        policy: Policy = FCFS,
    ) -> None:
        self._capacity = capacity
        self._prefix_cache = prefix_cache
        self._pace = pace
        self._max_num_batched_tokens = max_num_batched_tokens
        self._pool = BlockPool(capacity.num_blocks)
        self._books = Books()
        self._live: dict[int, Sequence] = {}
        self._waiting = policy.line()
        self._seats = Seats(self._pool, self._books, self._waiting, max_num_seqs, by_rank=policy.by_rank)
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
        if words := problem(request, self._capacity):
            self._events.append(TokenEvent(request_id=request.request_id, finish_reason="error", error=words))
            return
        table = BlockTable(self._pool, request.cache_salt, adapter=request.adapter, shared=self._prefix_cache)
        sequence = Sequence(request, table)
        self._live[request.request_id] = sequence
        self._waiting.join(sequence)

    def abort(self, request_ids: Iterable[int]) -> None:
        """End these requests wherever they are; unknown and finished ids mean nothing."""
        for request_id in request_ids:
            if sequence := self._live.get(request_id):
                self._end(sequence, "abort")
        self._waiting.sweep()
        self._seats.sweep()

    def schedule(self) -> StepPlan | None:
        """The next step, or None when nobody can run; decodes come first in it, then prefill chunks."""
        steps: list[SequenceStep] = []
        preemptions = self._books.preemptions_total
        decode_context = self._plan_decodes(steps)
        self._books.decode_tokens_total += len(steps)
        tokens = self._max_num_batched_tokens - len(steps)
        pace = self._pace
        backlog = self._waiting.tokens + self._seats.prefill_tokens
        budget = StepBudget(tokens) if pace is None else pace.budget(tokens, len(steps), decode_context, backlog)
        self._plan_prefills(steps, budget)
        # Who lost its seat in this pass gets none in it: before the next one its token in flight has come.
        if preemptions == self._books.preemptions_total or not len(self._seats):
            self._admit(steps, budget)
        self._seats.move_on()
        self._books.left_waiting(len(self._waiting), self._waiting.tokens)
        return StepPlan(tuple(steps)) if steps else None

    def complete(self, plan: StepPlan, results: Iterable[SequenceResult], step_s: float | None = None) -> None:
        """Take in one result for each sequence of the plan, in its order.

        A result without the token that its step asked for is a failure of that sequence; one for a sequence that has
        ended means nothing. `step_s` is how long the step took, for the pace of later ones.
        """
        ended = late = False
        live = self._live
        for step, result in zip(plan.sequences, results, strict=True):
            sequence = live.get(step.sequence_id)
            if sequence is None:
                continue
            token_id = result.token_id
            late = late or step.preemptions != sequence.preemptions
            if result.failure is not None or (step.sample and token_id is None):
                self._fail(sequence, result.failure or "The runner gave no token.")
            elif step.preemptions != sequence.preemptions:
                # It has lost its seat meanwhile: what was computed is gone, what was sampled and scored counts.
                self._tell(sequence, step, result)
            elif token_id is not None and sequence.prompt_tokens <= step.start == len(sequence.token_ids) - 1:
                self._decoded(sequence, token_id, result)
            else:
                self._prefilled(sequence, step, result)
            ended = ended or not sequence.live
        if ended:
            self._seats.sweep()
        if late:
            self._waiting.sweep()
        if self._pace is not None and step_s is not None:
            self._pace.learn(plan, step_s)

    def rollback(self) -> None:
        """The plans in flight are not computed and nobody asks for their results: go on from the last results.

        The next plan names all its tokens, and tells histories again.
        """
        self._seats.forget_flight()
        self._waiting.forget_flight()

    def harmless_step(self) -> StepPlan | None:
        """One token for nobody, in a block that nobody references; None while all blocks are used.

        For finding out whether the runner still works; `complete` must not be told of it.
        """
        block = self._pool.take()
        if block is None:
            return None
        self._pool.release((block,))
        step = SequenceStep(
            sequence_id=NOBODY, token_ids=(0,), start=0, block_table=(block,), sample=True,
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
        return self._books.snapshot(self._pool, running=len(self._seats))

    def check(self) -> PoolCheck:
        """Compare the pool's books with the block tables; costs O(blocks), so for idle times."""
        return self._pool.check(sequence.table.blocks for sequence in self._live.values())

    def _plan_decodes(self, steps: list[SequenceStep]) -> int:
        """Plan a token for all that decode; returns the positions that these attend to."""
        # Preemption takes from the end of the list, behind the sequence in hand or that one itself; so
        # nothing planned is ever preempted, and iterating over the shrinking list stays right.
        context = 0
        for sequence in self._seats.decoding:
            planned = sequence.planned
            if planned == sequence.final_tokens:
                continue
            if planned == sequence.table.capacity_tokens and not self._seats.make_room(sequence):
                break
            steps.append(sequence.decode_step())
            context += planned
        return context + len(steps)

    def _plan_prefills(self, steps: list[SequenceStep], budget: StepBudget) -> None:
        for sequence in self._seats.prefilling:
            if not budget.open:
                break
            self._plan_chunk(sequence, steps, budget)

    def _plan_chunk(self, sequence: Sequence, steps: list[SequenceStep], budget: StepBudget) -> None:
        start = sequence.planned
        tokens = budget.chunk(start, len(sequence.token_ids) - start)
        steps.append(sequence.prefill_step(tokens))
        budget.take(start, tokens)
        self._books.prefill_tokens_total += tokens

    def _admit(self, steps: list[SequenceStep], budget: StepBudget) -> None:
        seats, waiting = self._seats, self._waiting
        turns = waiting.turns()
        while budget.open and not seats.full and (sequence := next(turns, None)) is not None:
            cached = sequence.table.fill(sequence.token_ids, sequence.readable_tokens, seats.headroom_blocks(sequence))
            if cached is None and len(seats):
                return
            waiting.leave(len(sequence.token_ids) - (cached or 0))
            if cached is None:
                # It fits an empty pool by the rules of admission, so blocks have been lost.
                self._fail(sequence, "The KV cache has lost blocks; the request does not fit any more.")
                continue
            seats.sit_down(sequence, cached)
            if not sequence.was_admitted:
                sequence.was_admitted = True
                self._events.append(TokenEvent(request_id=sequence.sequence_id, cached_prompt_tokens=cached))
            self._plan_chunk(sequence, steps, budget)

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
        self._tell(sequence, step, result)

    def _tell(self, sequence: Sequence, step: SequenceStep, result: SequenceResult) -> None:
        """Take in what a prefill's chunk scored, and sampled when it was the last."""
        prompt_logprobs = () if step.prompt_logprobs is None else sequence.take_prompt_logprobs(step, result)
        token_id = result.token_id if step.sample else None
        if token_id is not None:
            finish_reason = sequence.append(token_id)
        elif step.start + step.tokens == sequence.token_limit:
            finish_reason = "length"
        else:
            finish_reason = None
            if not prompt_logprobs:
                return
        self._events.append(
            TokenEvent(
                request_id=sequence.sequence_id,
                token_id=token_id,
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
