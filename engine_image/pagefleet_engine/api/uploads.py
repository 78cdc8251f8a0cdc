"""Bodies of requests on their way in: how long and how large they may be, all together."""

import asyncio
from collections.abc import Callable

from starlette.types import Message, Receive

from pagefleet_engine.api.errors import BodyStalled, Draining, QueueFull

IDLE_S = 30.0
"""Longest wait for the next piece of a body."""
LIMIT_BYTES = 512 << 20
"""Bytes of bodies that are held at once: read, and not yet turned into requests."""


class Uploads:
    """All bodies that come in. None of them holds up the end of the process: `give_up` refuses them."""

    def __init__(self, refused: Callable[[], bool]) -> None:
        self._refused = refused
        self._waits: set[asyncio.Timeout] = set()
        self.held_bytes = 0

    def give_up(self) -> None:
        """Refuse, as `Draining`, every body that is not whole."""
        now_s = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():  # it has come to its own end at this moment, and cannot be given another
                wait.reschedule(now_s)
        self._waits.clear()

    async def next_piece(self, receive: Receive) -> Message:
        """The next message of a request; raises `BodyStalled`, and `Draining` after `give_up`."""
        if self._refused():
            raise _draining()
        try:
            async with asyncio.timeout(IDLE_S) as wait:
                self._waits.add(wait)
                try:
                    return await receive()
                finally:
                    self._waits.discard(wait)
        except TimeoutError as error:
            if self._refused():
                raise _draining() from error
            raise BodyStalled(f"No more of the request's body has come for {IDLE_S:.0f} s.") from error


class Upload:
    """The body of one request; `whole` is called once, when all of it has come."""

    def __init__(self, uploads: Uploads, receive: Receive, whole: Callable[[], None]) -> None:
        self._uploads = uploads
        self._receive = receive
        self._on_whole = whole
        self._is_whole = False
        self._held_bytes = 0

    async def receive(self) -> Message:
        """ASGI's `receive`: pieces of the body, then the client's end; raises what `Uploads` does, `QueueFull`."""
        if self._is_whole:
            return await self._receive()
        message = await self._uploads.next_piece(self._receive)
        if message["type"] != "http.request":
            return message
        piece_bytes = len(message.get("body", b""))
        if self._uploads.held_bytes + piece_bytes > LIMIT_BYTES:
            raise QueueFull("Too many large requests are being read at once.", retry_after_s=1)
        self._uploads.held_bytes += piece_bytes
        self._held_bytes += piece_bytes
        if not message.get("more_body", False):
            self._is_whole = True
            self._on_whole()
        return message

    def release(self) -> None:
        """The bytes are no longer held; again, nothing."""
        self._uploads.held_bytes -= self._held_bytes
        self._held_bytes = 0


def _draining() -> Draining:
    return Draining("This server is draining and takes no new requests.", retry_after_s=1)
