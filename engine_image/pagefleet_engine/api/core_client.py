"""The API process's end of the socket to the core: requests out, news in, and who waits for what."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from pagefleet_engine.api.errors import ApiError, CoreLost, EngineFailed
from pagefleet_engine.api.recent import RecentTotals
from pagefleet_engine.core.channel import ChannelClosed, encode_frame, encode_message, read_frame
from pagefleet_engine.wire import (
    Abort,
    CoreFailed,
    CoreReady,
    CoreStatus,
    StepReport,
    StepTimes,
    Submit,
    TokenEvent,
)

Clock = Callable[[], float]

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Who hears of one request's sequences as soon as there is news; must not raise."""

    def hear(self, event: TokenEvent, received_at_s: float) -> None:
        """News of one sequence, and when it came."""
        ...

    def end(self, error: Exception) -> None:
        """No more news: the request ends with `error`, unless it has ended."""
        ...


class CoreClient:
    """What the core last said, and the requests it works on.

    `ready`, `status` and `failure` are None until the core has said so; `recent` has what `status` was.
    `heard_at_s` is the time of its latest message, `busy_since_s` that of the first of the requests which keep
    it busy now.
    """

    def __init__(self, clock: Clock, on_step: Callable[[StepTimes], None], on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._on_step = on_step
        self._on_change = on_change
        self._writer: asyncio.StreamWriter | None = None
        self._flights: dict[int, Listener] = {}
        self._outbox: list[msgspec.Raw] = []
        self._next_id = 0
        self._refusal: ApiError | None = None
        self.ready: CoreReady | None = None
        self.status: CoreStatus | None = None
        self.recent = RecentTotals()
        self.failure: str | None = None
        self.heard_at_s: float | None = None
        self.busy_since_s: float | None = None

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the core's messages to the end; its end is a failure unless `close` came first."""
        if self._writer is not None:
            writer.close()
            return
        self._writer = writer
        try:
            while True:
                self._hear(await read_frame(reader))
        except ChannelClosed:
            self.fail("the core process has ended")
        except Exception as error:  # nobody would ever listen again
            log.exception("core_not_understood")
            self.fail(f"a message of the core was not understood: {error}")

    def take_ids(self, count: int) -> range:
        """Fresh request ids."""
        first = self._next_id
        self._next_id += count
        return range(first, self._next_id)

    def submit(self, submits: Sequence[Submit], listener: Listener) -> None:
        """Send sequences to the core together; raises the refusal that `end_all` was given.

        They are encoded here, so that one that cannot be costs its own request alone.
        """
        if self._refusal is not None:
            raise self._refusal
        encoded = [encode_message(submit) for submit in submits]
        if not self._flights:
            self.busy_since_s = self._clock()
        self._flights.update((submit.request_id, listener) for submit in submits)
        self._post(encoded)

    def abort(self, request_ids: Iterable[int]) -> None:
        """Forget these here and in the core; unknown ids are none of its business."""
        known = tuple(request_id for request_id in request_ids if self._forget(request_id))
        if known:
            self._post([encode_message(Abort(known))])

    def end_all(self, error: ApiError, refusal: ApiError) -> None:
        """End every request with `error`, and refuse every later one with `refusal`."""
        self._refusal = self._refusal or refusal
        for listener in set(self._flights.values()):
            _end(listener, error)

    def fail(self, message: str) -> None:
        """The core is lost; the first reason stays."""
        if self.failure is None:
            self.failure = message
            said = f"The engine failed: {message}. Send the request again."
            self.end_all(CoreLost(said, retry_after_s=5), EngineFailed(said, retry_after_s=5))
            self._on_change()

    def close(self) -> None:
        """Close the socket, which ends the core."""
        self.failure = self.failure or "the process is ending"
        if self._writer is not None:
            self._writer.close()

    def _hear(self, message: CoreReady | CoreFailed | StepReport) -> None:
        self.heard_at_s = self._clock()
        if isinstance(message, StepReport):
            self._hear_step(message, self.heard_at_s)
        elif isinstance(message, CoreReady):
            self.ready = message
            self._know(_untouched(message), self.heard_at_s)
            self._on_change()
        else:
            self.fail(message.message)

    def _hear_step(self, report: StepReport, now_s: float) -> None:
        if report.status is not None:
            self._know(report.status, now_s)
        for times in report.times:
            self._on_step(times)
        for event in report.events:
            listener = self._flights.get(event.request_id)
            if listener is None:
                continue
            if event.finish_reason is not None:
                self._forget(event.request_id)
            listener.hear(event, now_s)

    def _know(self, status: CoreStatus, now_s: float) -> None:
        self.status = status
        self.recent.note(status, now_s)

    def _forget(self, request_id: int) -> bool:
        known = self._flights.pop(request_id, None) is not None
        if not self._flights:
            self.busy_since_s = None
        return known

    def _post(self, messages: Sequence[msgspec.Raw]) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox += messages

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        if self._writer is None or self._writer.is_closing():
            return
        try:
            self._writer.write(encode_frame(messages))
        except Exception as error:  # what was in it is lost, and with it the answers
            log.exception("core_not_told")
            self.fail(f"the core could not be told of its requests: {error}")


def _end(listener: Listener, error: ApiError) -> None:
    """One that cannot end keeps no other from its own end."""
    try:
        listener.end(error)
    except Exception:
        log.exception("answer_not_ended")


def _untouched(ready: CoreReady) -> CoreStatus:
    """The status of a core that has served nothing, until its first report says the same."""
    return CoreStatus(
        running=0,
        waiting=0,
        queued_prompt_tokens=0,
        blocks_used=0,
        blocks_cached=0,
        blocks_free=ready.num_blocks,
        blocks_leaked=0,
        prompt_tokens_computed_total=0,
        prompt_tokens_cached_total=0,
        prefix_queries_total=0,
        prefix_hits_total=0,
        preemptions_total=0,
        block_allocation_failures_total=0,
        prefill_tokens_total=0,
        decode_tokens_total=0,
        seconds_since_last_step=0.0,
    )
