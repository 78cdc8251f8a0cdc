"""One accepted HTTP request: its sequences in the core, its choices, its account in the metrics."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple

from pagefleet_api.metrics import Engine
from pagefleet_engine.api.answers import CachedTokens, Usage
from pagefleet_engine.api.choice import Choice, Delta
from pagefleet_engine.api.core_client import Clock, CoreClient
from pagefleet_engine.api.errors import AnswerFailed, CoreLost, ReadTooSlowly
from pagefleet_engine.api.gate import Claim
from pagefleet_engine.api.recorder import Recorder
from pagefleet_engine.wire import Submit, TokenEvent

UNREAD_LIMIT_BYTES = 8 << 20
"""How far one request's answer, as it will be sent, may run ahead of its client's reading."""
_EVENT_BYTES = 256
_LOGPROB_BYTES = 96

log = logging.getLogger(__name__)


Direct = Callable[[int, Delta], bool]
"""Sends what an event adds to the choice of this index, at once; False, and nothing, where that cannot be."""


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
    """Runs the sequences of one request and keeps the books, when news comes and not when it is read.

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
        self._outcomes: list[str] = []
        self._unread: list[Progress] = []
        self._unread_bytes = 0
        self._read = False
        self._error: Exception | None = None
        self._wake = asyncio.Event()
        self._idle = False
        self._direct: Direct | None = None
        self._core = core
        self.choices = plan.choices
        core.submit(plan.submits, self)
        prompt_tokens = sum(len(submit.prompt_token_ids) for submit in plan.firsts)
        recorder.count(Engine.PROMPT_TOKENS, by=prompt_tokens)

    @property
    def first_token_s(self) -> float | None:
        """Seconds from arrival to the first token of any choice."""
        firsts = [timing.first_at_s - timing.arrived_at_s for timing in self._timings if timing.first_at_s is not None]
        return min(firsts, default=None)

    def send_by(self, direct: Direct) -> None:
        """From now on `direct` sends what comes while the reader of `progress` waits, without waking it.

        So a token costs no switch of tasks. A choice's end and what `direct` does not take go through `progress`.
        """
        self._direct = direct

    async def progress(self) -> AsyncGenerator[list[Progress], None]:
        """What has been added since the last batch, until every choice has ended.

        Raises what `end` was given, after what was made before. However it is left, the core forgets what
        is unfinished and the books are closed.
        """
        try:
            while self._open or self._unread or self._error is not None:
                if self._unread:
                    batch, self._unread, self._unread_bytes = self._unread, [], 0
                    yield batch
                elif self._error is not None:
                    raise self._error
                else:
                    self._wake.clear()
                    self._idle = True
                    await self._wake.wait()
                    self._idle = False
            self._read = True
        finally:
            self._idle, self._direct = False, None
            self._close("abort")

    def hear(self, event: TokenEvent, received_at_s: float) -> None:
        """Take news of one sequence when it comes, whenever the client may read it."""
        index = self._index[event.request_id]
        if index not in self._open:
            return
        try:
            self._take(index, event, received_at_s)
        except Exception:  # one answer's fault must not cost the others
            log.exception("answer_failed")
            self.end(AnswerFailed("The answer failed inside the server."))

    def end(self, error: Exception) -> None:
        """End what is unfinished; the reader meets `error` after what was made. The first error stays."""
        if self._error is not None or self._read:
            return
        self._error = error
        if isinstance(error, ClientGone):
            self._recorder.count(Engine.CLIENT_DISCONNECTS)
            self._unread.clear()
        self._close("error" if isinstance(error, AnswerFailed | CoreLost) else "abort")
        self._wake.set()

    def fail(self) -> None:
        """What is unfinished ends by a fault of this process: it counts as an error, not as an abort."""
        self._close("error")

    def _take(self, index: int, event: TokenEvent, now_s: float) -> None:
        if event.finish_reason in ("error", "abort"):
            self.end(AnswerFailed(f"The engine could not finish this answer: {event.error or 'aborted'}"))
            return
        delta = self.choices[index].push(event)
        self._time(self._timings[index], event, now_s)
        if delta.finish_reason is not None:
            if event.finish_reason is None:
                self._core.abort([event.request_id])
            self._end(index, delta.finish_reason)
        elif self._idle and not self._unread and self._direct is not None and self._direct(index, delta):
            return
        self._unread.append(Progress(index, delta))
        self._unread_bytes += _size_bytes(delta)
        self._wake.set()
        if self._unread_bytes > UNREAD_LIMIT_BYTES:
            self.end(ReadTooSlowly("The answer was ended: its client reads it too slowly."))

    def _close(self, outcome: str) -> None:
        self._core.abort([self._plan.submits[index].request_id for index in self._open])
        for index in tuple(self._open):
            self._end(index, outcome)

    def _time(self, timing: _Timing, event: TokenEvent, now_s: float) -> None:
        if timing.seated_at_s is None and event.cached_prompt_tokens is not None:
            timing.seated_at_s = now_s
            self._recorder.observe(Engine.REQUEST_QUEUE, timing.seated_at_s - timing.arrived_at_s)
        if event.token_id is None:
            return
        self._recorder.generation_tokens += 1
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
        self._claim.end_one()
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


def _size_bytes(delta: Delta) -> int:
    """About what a delta takes in a stream."""
    logprobs = sum(1 + len(entry.logprobs.top) for entry in delta.entries)
    return _EVENT_BYTES + len(delta.text) + _LOGPROB_BYTES * logprobs
