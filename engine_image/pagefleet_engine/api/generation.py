"""One accepted HTTP request: its sequences in the core, its choices, its account in the metrics."""

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from pagefleet_api.metrics import Engine
from pagefleet_engine.api.answers import CachedTokens, Usage
from pagefleet_engine.api.choice import Choice, Delta
from pagefleet_engine.api.core_client import Arrival, Clock, CoreClient
from pagefleet_engine.api.errors import AnswerFailed, CoreLost
from pagefleet_engine.api.gate import Claim
from pagefleet_engine.api.recorder import Recorder
from pagefleet_engine.wire import Submit

log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client hung up; nobody waits for the answer."""


class Progress(NamedTuple):
    """What one event adds to one choice."""

    choice_index: int
    delta: Delta


class Plan(NamedTuple):
    """What to ask of the core; `submits` and `choices` run in step, prompt by prompt."""

    submits: Sequence[Submit]
    choices: Sequence[Choice]
    choices_per_prompt: int

    @property
    def firsts(self) -> Sequence[Submit]:
        """The first sequence of each prompt."""
        return self.submits[:: self.choices_per_prompt]


class _Timing:
    """When things happened to one sequence, in seconds on the client's clock."""

    __slots__ = ("arrived_at_s", "first_at_s", "last_at_s", "seated_at_s")

    def __init__(self, arrived_at_s: float) -> None:
        self.arrived_at_s = arrived_at_s
        self.seated_at_s: float | None = None
        self.first_at_s: float | None = None
        self.last_at_s: float | None = None


class Generation:
    """Runs the sequences of one request and keeps the books.

    A request counts as accepted from here on, and each of its sequences (choices of each prompt) is counted
    exactly once in `requests_total`: stop or length when it ended by itself, abort when the client hung up
    or the process ended first, error when the engine failed. The histograms of duration and sizes take
    every sequence, however it ended; `prompt_tokens_total` takes each prompt once.
    """

    def __init__(
        self,
        core: CoreClient,
        recorder: Recorder,
        claim: Claim,
        plan: "Plan",
        *,
        clock: Clock,
        arrived_at_s: float,
    ) -> None:
        self._recorder = recorder
        self._claim = claim
        self._clock = clock
        self._plan = plan
        self._index = {submit.request_id: index for index, submit in enumerate(plan.submits)}
        self._timings = [_Timing(arrived_at_s) for _ in plan.submits]
        self._open = set(self._index.values())
        self._outcome = "abort"
        self._outcomes: list[str] = []
        self.choices = plan.choices
        self.flight = core.submit(plan.submits)
        prompt_tokens = sum(len(submit.prompt_token_ids) for submit in plan.firsts)
        recorder.count(Engine.PROMPT_TOKENS, by=prompt_tokens)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from arrival to the first token of any choice."""
        firsts = [timing.first_at_s - timing.arrived_at_s for timing in self._timings if timing.first_at_s is not None]
        return min(firsts, default=None)

    async def progress(self) -> AsyncGenerator[list[Progress], None]:
        """What each batch of news adds, until every choice has ended.

        Raises `ClientGone`, or the `ApiError` that ended the request early. However it is left, the core
        forgets what is unfinished and the books are closed.
        """
        try:
            while self._open:
                batch, failure = self._take(await self.flight.arrivals())
                if batch:
                    yield batch
                if failure is not None:
                    raise failure
        except ClientGone:
            self._recorder.count(Engine.CLIENT_DISCONNECTS)
            raise
        except (AnswerFailed, CoreLost):
            self._outcome = "error"
            raise
        finally:
            self.flight.drop([self._plan.submits[index].request_id for index in self._open])
            for index in tuple(self._open):
                self._end(index, self._outcome)

    def _take(self, arrivals: Sequence[Arrival]) -> tuple[list[Progress], AnswerFailed | None]:
        batch: list[Progress] = []
        for arrival in arrivals:
            event, index = arrival.event, self._index[arrival.event.request_id]
            if index not in self._open:
                continue
            if event.finish_reason in ("error", "abort"):
                return batch, AnswerFailed(f"The engine could not finish this answer: {event.error or 'aborted'}")
            delta = self.choices[index].push(event)
            self._time(self._timings[index], arrival)
            if delta.finish_reason is not None:
                if event.finish_reason is None:
                    self.flight.drop([event.request_id])
                self._end(index, delta.finish_reason)
            batch.append(Progress(index, delta))
        return batch, None

    def _time(self, timing: _Timing, arrival: Arrival) -> None:
        now_s = arrival.received_at_s
        if timing.seated_at_s is None and arrival.event.cached_prompt_tokens is not None:
            timing.seated_at_s = now_s
            self._recorder.observe(Engine.REQUEST_QUEUE, timing.seated_at_s - timing.arrived_at_s)
        if arrival.event.token_id is None:
            return
        self._recorder.count(Engine.GENERATION_TOKENS)
        if timing.last_at_s is None:
            timing.first_at_s = now_s
            self._recorder.observe(Engine.TIME_TO_FIRST_TOKEN, now_s - timing.arrived_at_s)
            if timing.seated_at_s is not None:
                self._recorder.observe(Engine.REQUEST_PREFILL, now_s - timing.seated_at_s)
        else:
            self._recorder.inter_token.observe(now_s - timing.last_at_s)
        timing.last_at_s = now_s

    def _end(self, index: int, outcome: str) -> None:
        """Close the books of one sequence; `outcome` is a label value of `requests_total`."""
        self._open.discard(index)
        self._claim.release(1)
        timing = self._timings[index]
        if timing.first_at_s is not None and timing.last_at_s is not None:
            self._recorder.observe(Engine.REQUEST_DECODE, timing.last_at_s - timing.first_at_s)
        if timing.seated_at_s is not None and timing.last_at_s is not None:
            self._recorder.observe(Engine.REQUEST_INFERENCE, timing.last_at_s - timing.seated_at_s)
        self._outcomes.append(outcome)
        self._recorder.count(Engine.REQUESTS, outcome)
        self._recorder.observe(Engine.REQUEST_DURATION, self._clock() - timing.arrived_at_s)
        self._recorder.observe(Engine.REQUEST_PROMPT_TOKENS, len(self._plan.submits[index].prompt_token_ids))
        self._recorder.observe(Engine.REQUEST_GENERATION_TOKENS, self.choices[index].completion_tokens)

    def fail(self) -> None:
        """What is unfinished ends by a fault of this process: it counts as an error, not as an abort."""
        self._outcome = "error"

    def log_end(self, request_id: str, *, stream: bool) -> None:
        """One line for the whole request, once `progress` is closed."""
        usage = self.usage()
        duration_s = self._clock() - self._timings[0].arrived_at_s
        log.info(
            "request_finished",
            extra={
                "request": request_id,
                "stream": stream,
                "outcomes": self._outcomes,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "completion_tokens": usage.completion_tokens,
                "first_token_s": None if self.first_token_s is None else round(self.first_token_s, 4),
                "duration_s": round(duration_s, 4),
            },
        )

    def usage(self) -> Usage:
        """Tokens so far: each prompt once, all choices summed."""
        firsts = range(0, len(self.choices), self._plan.choices_per_prompt)
        prompt = sum(len(submit.prompt_token_ids) for submit in self._plan.firsts)
        cached = sum(self.choices[index].cached_prompt_tokens or 0 for index in firsts)
        completion = sum(choice.completion_tokens for choice in self.choices)
        return Usage(prompt, completion, prompt + completion, CachedTokens(cached))
