"""Bytes in and out of HTTP: bodies within a limit, error answers, event streams, hang-ups."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from pagefleet_engine.api import errors
from pagefleet_engine.api.answers import to_event, to_json
from pagefleet_engine.api.errors import AnswerFailed, ApiError, BodyTooLarge, EncodingRefused
from pagefleet_engine.api.fields import shown
from pagefleet_engine.api.generation import ClientGone

_JSON = "application/json"
_CLIENT_CLOSED_REQUEST = 499

log = logging.getLogger(__name__)


def json_response(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer from encoded bytes."""
    return Response(body, status, headers, media_type=_JSON)


def error_response(error: ApiError) -> Response:
    """An error in OpenAI's shape."""
    return json_response(to_json(errors.body(error)), errors.http_status(error), errors.headers(error))


def nobody_response() -> Response:
    """For a client that hung up: it is never sent."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body.

    Raises `EncodingRefused`, `BodyTooLarge`, and `ClientGone` when the client hangs up before its end.
    """
    _refuse_encodings(request)
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _refuse_encodings(request: Request) -> None:
    for name, plain in (("content-encoding", "identity"), ("transfer-encoding", "chunked")):
        encoding = request.headers.get(name, plain)
        if encoding.lower() != plain:
            raise EncodingRefused(
                f"{name} is {shown(encoding)}; this server reads bodies as they are, so send it without {name}",
                param=name,
            )


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request's body is over {limit_bytes >> 20} MiB.")


@asynccontextmanager
async def on_hang_up(receive: Receive, act: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `act` as soon as the client hangs up inside the block; the body must have been read."""
    watch = asyncio.create_task(_disconnected(receive))
    watch.add_done_callback(lambda task: None if task.cancelled() else act())
    try:
        yield
    finally:
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


CHUNKS = "pagefleet.chunks"
"""ASGI extension of our connections; `begun` gives the `Chunks` of the answer, None before its head is sent."""


class Chunks(Protocol):
    """Pieces of an answer that has begun, written past the layers of the application."""

    @property
    def open(self) -> bool:
        """Whether a piece can be written now: the client is there and has not too much left to take."""
        ...

    def write(self, piece: bytes) -> None:
        """Write a piece while `open`; never an empty one, which would end the answer."""
        ...


def chunks_of(request: Request) -> Chunks | None:
    """The way past the application to this request's connection; None where the server gives none."""
    extension = request.scope.get("extensions", {}).get(CHUNKS)
    found: Chunks | None = None if extension is None else extension["begun"]()
    return found


class EventStream(Response):
    """Server-sent events whose first piece is known, so that the status line is not a guess.

    An `ApiError` becomes one `data: {"error": …}` event, after which the stream ends without `[DONE]`.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; however that ends, the source is closed."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send_piece(send, self._first)
            await self._send_rest(send)
        except ClientGone:
            return
        finally:
            await self._rest.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_rest(self, send: Send) -> None:
        try:
            async for piece in self._rest:
                await _send_piece(send, piece)
        except ApiError as error:
            await _send_piece(send, to_event(errors.body(error)))
        except ClientGone:
            raise
        except Exception:
            log.exception("stream_failed")
            await _send_piece(send, to_event(errors.body(AnswerFailed("The answer failed inside the server."))))


async def _send_piece(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})
