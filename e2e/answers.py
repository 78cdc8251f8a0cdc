"""What a load client records of each request, and the judgement of a streamed answer. No I/O, no clock."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """How a request failed, as its client saw it."""

    CONNECT = "connect"
    """No connection, also after the retries."""
    RESET = "reset"
    """The connection broke after the request was sent."""
    REFUSED = "refused"
    """An HTTP status other than 200."""
    ERROR_EVENT = "error event"
    """The stream carried an error in place of its end."""
    MALFORMED = "malformed"
    """Something that is not the protocol."""
    NOT_DONE = "missing [DONE]"
    """The stream ended well for TCP and without its last line."""
    WRONG_COUNT = "wrong token count"
    """An end that contradicts what was asked for or what was streamed."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The load was stopped by force."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. With `exact`, the answer must have `max_tokens` tokens (the engine ignores its end token)."""

    prompt: str
    max_tokens: int
    exact: bool = True
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request; times in seconds since the load's start."""

    number: int
    asked_tokens: int
    started_s: float
    ended_s: float
    status: int | None = None
    server_id: str | None = None
    """The server's name for the request, as its log has it (`x-request-id`)."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """From the usage chunk; without one, the chunks that carried a token."""
    chunks: int = 0
    finish_reason: str | None = None
    token_times_s: tuple[float, ...] = ()
    retries: int = 0
    fault: Fault | None = None
    detail: str = ""

    @property
    def time_to_first_token_s(self) -> float | None:
        return self.token_times_s[0] - self.started_s if self.token_times_s else None

    @property
    def inter_token_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_times_s, self.token_times_s[1:], strict=False)]


class BrokenStream(Exception):
    """A streamed answer that is not what was promised."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


@dataclass(slots=True)
class StreamedAnswer:
    """A chat stream while it arrives, one `data:` line after the other."""

    ask: Ask
    text: list[str] = field(default_factory=list)
    token_times_s: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    done: bool = False

    def line(self, raw: bytes, now_s: float) -> None:
        """Take one line of the response body.

        Raises:
            BrokenStream: an error event, data after the end, or something that is no chunk.
        """
        line = raw.rstrip(b"\r\n")
        if not line or line.startswith(b":"):
            return
        if not line.startswith(b"data:"):
            raise BrokenStream(Fault.MALFORMED, f"not an event: {line[:200]!r}")
        data = line[5:].strip()
        if self.done:
            raise BrokenStream(Fault.MALFORMED, f"data after [DONE]: {data[:200]!r}")
        if data == b"[DONE]":
            self.done = True
            return
        self._chunk(data, now_s)

    def _chunk(self, data: bytes, now_s: float) -> None:
        try:
            chunk = json.loads(data)
            self._take(chunk, now_s)
        except (ValueError, TypeError, LookupError, AttributeError):
            raise BrokenStream(Fault.MALFORMED, f"not a chunk: {data[:200]!r}") from None

    def _take(self, chunk: dict[str, Any], now_s: float) -> None:
        if "error" in chunk:
            raise BrokenStream(Fault.ERROR_EVENT, json.dumps(chunk["error"])[:500])
        if chunk.get("usage"):
            self.usage = dict(chunk["usage"])
        for choice in chunk.get("choices", []):
            if self.finish_reason is not None:
                raise BrokenStream(Fault.MALFORMED, f"a chunk after the finish reason: {json.dumps(choice)[:200]}")
            piece = choice.get("delta", {}).get("content")
            if piece:
                self.text.append(piece)
                self.token_times_s.append(now_s)
            self.finish_reason = choice.get("finish_reason")

    def completion_tokens(self) -> int:
        """By the usage chunk when there is one, else the chunks that carried text."""
        return len(self.text) if self.usage is None else int(self.usage["completion_tokens"])

    def check_end(self) -> None:
        """Judge a stream whose connection ended without an error.

        Raises:
            BrokenStream: [DONE], the finish reason or tokens are missing.
        """
        if not self.done:
            raise BrokenStream(Fault.NOT_DONE, f"the stream ended after {len(self.text)} chunks")
        if self.finish_reason is None:
            raise BrokenStream(Fault.MALFORMED, "no finish reason")
        check_count(self.ask, self.completion_tokens(), self.finish_reason, exact=self.usage is not None)


def check_count(ask: Ask, tokens: int, finish_reason: str, *, exact: bool) -> None:
    """Compare an answer's end with the request.

    Without usage (`exact` false) a chunk may hold several tokens, so fewer chunks than tokens are no fault.

    Raises:
        BrokenStream: too many tokens, too few for an answer whose length was promised, or a finish reason to match.
    """
    if tokens > ask.max_tokens or (exact and ask.exact and tokens != ask.max_tokens):
        raise BrokenStream(Fault.WRONG_COUNT, f"{tokens} tokens of {ask.max_tokens}")
    if ask.exact and finish_reason != "length":
        raise BrokenStream(Fault.WRONG_COUNT, f"finish reason {finish_reason} where length was due")


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True, slots=True)
class Summary:
    """A load in numbers; `answered` had all that they asked for."""

    requests: int
    answered: int
    faults: dict[str, int]
    statuses: dict[str, int]
    finish_reasons: dict[str, int]
    retries: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None

    def json(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        rate = self.completion_tokens / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.answered} of {self.requests} requests answered in full, {self.retries} retries, "
            f"{self.completion_tokens} tokens in {self.seconds:.1f} s ({rate:.0f} tokens/s)",
            "from a request to its first token, waiting included: half of them take up to "
            f"{_seconds(self.ttft_p50_s)} (p50), 99 of 100 up to {_seconds(self.ttft_p99_s)} (p99)",
            f"from one token to the next: p50 {_seconds(self.itl_p50_s)}, p99 {_seconds(self.itl_p99_s)}",
        ]
        lines += [f"{fault}: {count}" for fault, count in self.faults.items()]
        return "\n".join(lines)


def summary(answers: Sequence[Answer]) -> Summary:
    """The numbers of a finished load."""
    first = [answer.time_to_first_token_s for answer in answers if answer.time_to_first_token_s is not None]
    between = [gap for answer in answers for gap in answer.inter_token_s]
    start_s = min((answer.started_s for answer in answers), default=0.0)
    return Summary(
        requests=len(answers),
        answered=sum(answer.fault is None for answer in answers),
        faults=_count(answer.fault for answer in answers),
        statuses=_count(answer.status for answer in answers),
        finish_reasons=_count(answer.finish_reason for answer in answers),
        retries=sum(answer.retries for answer in answers),
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in answers),
        completion_tokens=sum(answer.completion_tokens or 0 for answer in answers),
        seconds=max((answer.ended_s for answer in answers), default=0.0) - start_s,
        ttft_p50_s=percentile(first, 0.50),
        ttft_p99_s=percentile(first, 0.99),
        itl_p50_s=percentile(between, 0.50),
        itl_p99_s=percentile(between, 0.99),
    )


def _count(values: Iterable[object]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        if value is not None:
            counts[str(value)] = counts.get(str(value), 0) + 1
    return dict(sorted(counts.items()))


def _seconds(value: float | None) -> str:
    return "? s" if value is None else f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
