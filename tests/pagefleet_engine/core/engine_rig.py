"""Scheduler and `ChainRunner` turned step by step, with every promise checked on the way."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.scheduler.pace import Pace
from pagefleet_engine.scheduler.policies import POLICIES
from pagefleet_engine.steps import Pending, Sampling, StepPlan, TokenLogprobs, no_progress
from pagefleet_engine.wire import Submit, TokenEvent
from tests.pagefleet_engine.core.chain_runner import VOCAB_SIZE, ChainRunner


def submit(
    request_id: int,
    prompt: Iterable[int],
    max_tokens: int,
    *,
    stop: tuple[int, ...] = (),
    prompt_logprobs: int | None = None,
    salt: str = "",
    seed: int = 0,
    priority: int = 0,
    tenant: str = "",
    adapter: int | None = None,
) -> Submit:
    """A request in one line."""
    return Submit(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        max_tokens=max_tokens,
        sampling=Sampling(seed=seed, temperature=0.0),
        stop_token_ids=stop,
        prompt_logprobs=prompt_logprobs,
        cache_salt=salt,
        priority=priority,
        tenant=tenant,
        adapter=adapter,
    )


class Flight(NamedTuple):
    """A step that was launched."""

    plan: StepPlan
    pending: Pending


class Rig:
    """One scheduler with its runner; collects what each request was told. With `lookahead` as the loop does it."""

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 4096,
        check: bool = True,
        lookahead: bool = False,
        pace: Pace | None = None,
        in_order: bool = True,
        policy: str = "fcfs",
    ) -> None:
        """`in_order`: nobody waits for what others compute, so nobody is passed."""
        self._in_order = in_order and policy == "fcfs"
        self.scheduler = Scheduler(
            Capacity(max_model_len, num_blocks, VOCAB_SIZE),
            max_num_seqs,
            max_num_batched_tokens,
            pace=pace,
            policy=POLICIES[policy],
        )
        self.runner = ChainRunner(num_blocks, lookahead=lookahead)
        self.flight: Flight | None = None
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.check = check
        self.tokens: dict[int, list[int]] = {}
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.cached: dict[int, int] = {}
        self.ends: dict[int, TokenEvent] = {}
        self.plans: list[StepPlan] = []
        self.planned_tokens = 0
        self.preemptions: Counter[int] = Counter()
        self._places: dict[int, int] = {}
        self._most_computed: dict[int, int] = {}

    def submit(self, *requests: Submit) -> None:
        """Queue requests."""
        for request in requests:
            self.scheduler.submit(request)
            self._places[request.request_id] = len(self._places)
            prompt_tokens = len(request.prompt_token_ids)
            self._most_computed[request.request_id] = max(prompt_tokens + request.max_tokens - 1, prompt_tokens)

    def plan(self) -> StepPlan | None:
        """One pass, with its limits checked."""
        plan = self.scheduler.schedule()
        if plan is not None:
            assert 0 < plan.batch_tokens <= self.max_num_batched_tokens
            assert len(plan.sequences) <= self.max_num_seqs
            if not self.runner.lookahead:
                assert len(plan.sequences) == self.scheduler.snapshot().running, "a seat without progress"
            self.plans.append(plan)
            self.planned_tokens += plan.batch_tokens
            told = self.scheduler.snapshot()
            assert told.prefill_tokens_total + told.decode_tokens_total == self.planned_tokens
            for step in plan.sequences:
                self.preemptions[step.sequence_id] = step.preemptions
                assert step.start + step.tokens <= self._most_computed[step.sequence_id], "past the last token"
        return plan

    def launch(self) -> Flight | None:
        """Plan and launch a step, when anybody can run."""
        plan = self.plan()
        return None if plan is None else Flight(plan, self.runner.launch(plan))

    def step(self, meanwhile: Callable[[], None] = no_progress, *, spoil: bool = False) -> bool:
        """One round; False when nothing was computed.

        `meanwhile` happens while steps are in flight; with `spoil` all results of this round are failures.
        """
        flight, self.flight = self.flight or self.launch(), None
        if flight is not None:
            if self.runner.lookahead:
                self.flight = self.launch()
            meanwhile()
            results = list(flight.pending.results())
            if spoil:
                results = [replace(result, token_id=None, failure="the step failed") for result in results]
            self.scheduler.complete(flight.plan, results)
        self.read_events()
        self.verify()
        return flight is not None

    def fault(self, meanwhile: Callable[[], None] = no_progress) -> None:
        """Steps are launched and nobody gets their results."""
        self.flight = self.flight or self.launch()
        if self.flight is not None:
            if self.runner.lookahead:
                self.launch()
            meanwhile()
        self.flight = None
        self.runner.forget()
        self.scheduler.rollback()
        self.read_events()
        self.verify()

    def run(self, max_steps: int = 100_000) -> None:
        """Rounds until all is finished."""
        for _ in range(max_steps):
            if not self.step():
                break
        assert not self.scheduler.has_work, "the engine is stuck or starves somebody"
        assert self.scheduler.snapshot().running == 0
        assert self.scheduler.snapshot().blocks_used == 0

    def read_events(self) -> None:
        """Take the news; nobody is told anything after the end."""
        for event in self.scheduler.drain_events():
            assert event.request_id not in self.ends, "news after the end"
            if event.token_id is not None:
                self.tokens.setdefault(event.request_id, []).append(event.token_id)
            self.scored.setdefault(event.request_id, []).extend(event.prompt_logprobs)
            if event.cached_prompt_tokens is not None:
                assert event.request_id not in self.cached, "told twice"
                self.cached[event.request_id] = event.cached_prompt_tokens
            if event.finish_reason is not None:
                self.ends[event.request_id] = event

    def verify(self) -> None:
        """The pool's books are right."""
        if self.check:
            result = self.scheduler.check()
            assert result == (0, ()), result
            queue = [*self.scheduler._seats, *self.scheduler._waiting]
            places = [self._places[sequence.sequence_id] for sequence in queue]
            assert not self._in_order or places == sorted(places), "not in order of arrival"
            assert len(queue) == len(self.scheduler._live)
