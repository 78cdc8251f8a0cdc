"""One request to an OpenAI server and everything that may happen to it, as a record."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from e2e.answers import Answer, Ask, BrokenStream, Fault, StreamedAnswer, check_count

_RETRY_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how it is asked. `url` is asked for each attempt and ends in `/v1`."""

    url: Callable[[], str]
    model: str
    stream: bool = True
    usage: bool = True
    """Ask for the usage chunk of a stream."""
    request_timeout_s: float = 300.0
    retries: int = 20


class _Retry(Exception):
    """Nothing of the answer was there: the request may be sent again after `pause_s`."""

    def __init__(self, fault: Fault, detail: str, pause_s: float) -> None:
        super().__init__(detail)
        self.fault, self.pause_s = fault, pause_s


class Exchange:
    """One request while it is open; `run` ends it with a record, whatever happens."""

    def __init__(self, target: Target, number: int, ask: Ask, now_s: Callable[[], float]) -> None:
        self.target, self.number, self.ask = target, number, ask
        self._now_s = now_s
        self._started_s = now_s()
        self._streamed = StreamedAnswer(ask)
        self._status: int | None = None
        self._server_id: str | None = None
        self._retries = 0

    @property
    def tokens_to_go(self) -> int:
        """At most so many tokens are still to come."""
        return self.ask.max_tokens - len(self._streamed.text)

    async def run(self, session: aiohttp.ClientSession, record: Callable[[Answer], None]) -> None:
        """Ask, read the answer to its end and give the record to `record`, also when this task is cancelled."""
        fault: Fault | None = Fault.MALFORMED
        detail = ""
        try:
            async with asyncio.timeout(self.target.request_timeout_s):
                await self._attempts(session)
            fault = None
        except BrokenStream as broken:
            fault, detail = broken.fault, str(broken)
        except TimeoutError:
            fault, detail = Fault.TIMEOUT, f"after {self.target.request_timeout_s:.0f} s"
        except (aiohttp.ClientError, OSError) as error:
            fault, detail = Fault.RESET, f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            fault = Fault.CANCELLED
            raise
        finally:
            record(self._answer(fault, detail))

    async def _attempts(self, session: aiohttp.ClientSession) -> None:
        while True:
            try:
                return await self._attempt(session)
            except _Retry as retry:
                if self._retries == self.target.retries:
                    raise BrokenStream(retry.fault, str(retry)) from retry
                self._retries += 1
                await asyncio.sleep(retry.pause_s)

    async def _attempt(self, session: aiohttp.ClientSession) -> None:
        try:
            response = await session.post(f"{self.target.url()}/chat/completions", json=self._body())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ConnectionRefusedError) as error:
            raise _Retry(Fault.CONNECT, str(error), _RETRY_PAUSE_S) from error
        async with response:
            self._status, self._server_id = response.status, response.headers.get("x-request-id")
            if response.status != 200:
                await self._refused(response)
            if self.target.stream:
                async for line in response.content:
                    self._streamed.line(line, self._now_s())
                self._streamed.check_end()
            else:
                self._whole(await response.json())

    async def _refused(self, response: aiohttp.ClientResponse) -> None:
        text = f"{response.status}: {(await response.text())[:500]}"
        pause = response.headers.get("Retry-After", "")
        if response.status == 503 and pause.isdigit():
            raise _Retry(Fault.REFUSED, text, float(pause))
        raise BrokenStream(Fault.REFUSED, text)

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.target.model,
            "messages": [{"role": "user", "content": self.ask.prompt}],
            "max_tokens": self.ask.max_tokens,
            "temperature": self.ask.temperature,
            "stream": self.target.stream,
        }
        if self.ask.exact:
            body["ignore_eos"] = True
        if self.target.stream and self.target.usage:
            body["stream_options"] = {"include_usage": True}
        return body

    def _whole(self, body: dict[str, Any]) -> None:
        answer = self._streamed
        try:
            choice = body["choices"][0]
            answer.text, answer.done = [choice["message"]["content"]], True
            answer.finish_reason, answer.usage = choice["finish_reason"], body["usage"]
            tokens = answer.completion_tokens()
        except (LookupError, TypeError) as error:
            raise BrokenStream(Fault.MALFORMED, f"not an answer: {body}"[:500]) from error
        answer.token_times_s = [self._now_s()]
        check_count(self.ask, tokens, choice["finish_reason"], exact=True)

    def _answer(self, fault: Fault | None, detail: str) -> Answer:
        streamed = self._streamed
        return Answer(
            number=self.number,
            asked_tokens=self.ask.max_tokens,
            started_s=self._started_s,
            ended_s=self._now_s(),
            status=self._status,
            server_id=self._server_id,
            prompt_tokens=None if streamed.usage is None else int(streamed.usage["prompt_tokens"]),
            completion_tokens=streamed.completion_tokens(),
            chunks=len(streamed.text),
            finish_reason=streamed.finish_reason,
            token_times_s=tuple(streamed.token_times_s),
            retries=self._retries,
            fault=fault,
            detail=detail,
        )
