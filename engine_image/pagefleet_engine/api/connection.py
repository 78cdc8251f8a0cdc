"""One client's connection, where uvicorn's own would lose bytes, requests or the end of a client."""

import array
import asyncio
import fcntl
import logging
import socket
import termios
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pagefleet_engine.api import errors
from pagefleet_engine.api.answers import to_json
from pagefleet_engine.api.errors import ApiError, HeadTooLarge, InvalidRequest
from pagefleet_engine.api.transport import CHUNKS

HEAD_LIMIT_BYTES = 64 << 10
"""Request line and headers, or the trailers of a chunked body."""
STALL_S = 30.0
"""A client that takes none of the bytes that wait for it for this long is dropped."""
UNREAD_BODY_S = 2.0
"""How long a client may go on sending a body that was refused, so that it comes to read why."""
_UPGRADE_TOKENS = (b"upgrade", b"http2-settings")


log = logging.getLogger(__name__)


class _NotParsed(Exception):
    """Ends the parsing of what has been read."""


class Connection(HttpToolsProtocol):
    """Serves one request after the other.

    - An offer to upgrade (`Upgrade: h2c`) is ignored, as RFC 9110 section 7.8 allows, and the request served.
    - A request sent before the answer to the one before is not read: that answer is the connection's last.
      A client that pipelines must send again what was not answered (RFC 9112 section 9.3.2); queued, its
      bytes would hide the client's hang-up.
    - A head over `HEAD_LIMIT_BYTES` is refused with 431.
    - A closed connection stays until the client has taken its last bytes, and while it sends a body that
      nobody wants: closing on unread bytes resets the connection and loses the answer.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deaf = False
        self._in_message = False
        self._head_done = False
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._left_bytes = 0
        self._moved_at_s = self.loop.time()
        self._close_by_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Keep the transport, so that closing it can wait."""
        self._direct = transport
        super().connection_made(_Transport(transport, self._close_gently))

    def data_received(self, data: bytes) -> None:
        """Parse; bytes that will not be served are dropped, so that the client's end is still seen."""
        self._unset_keepalive_if_required()
        if self._deaf:
            return
        self._unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._deaf:
                self._refuse(InvalidRequest("This is not a valid HTTP/1.1 request."))
        if self._unparsed_bytes > HEAD_LIMIT_BYTES and not self._deaf:
            self._refuse(_head_too_large())

    def undelivered(self, now_s: float) -> bool:
        """Whether the client has bytes left to take, in this process or in the kernel; to be asked regularly.

        It also ends connections: those that stalled, and those that were closed and have nothing left.
        """
        left_bytes = self._direct.get_write_buffer_size() + _unacknowledged_bytes(self._direct)
        answering = self.cycle is not None and not self.cycle.response_complete
        if left_bytes != self._left_bytes or (answering and not self.flow.write_paused):
            self._left_bytes, self._moved_at_s = left_bytes, now_s
        elif left_bytes and now_s - self._moved_at_s > STALL_S:
            log.info("client_stalled", extra={"left_bytes": left_bytes, "path": self.scope["path"]})
            self._direct.abort()
        if self._close_by_s is not None and not left_bytes and (not self._in_message or now_s > self._close_by_s):
            self._direct.close()
        return left_bytes > 0

    def on_message_begin(self) -> None:
        """Begin a request, unless the one before still waits for its answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._deaf = True
            self.cycle.keep_alive = False
            raise _NotParsed
        self._in_message = True
        self._head_done = False
        self._head_bytes = self._unparsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers are dropped."""
        self._count(len(name) + len(value))
        if not self._head_done:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request, except one that is parsed again without its upgrade."""
        self._unparsed_bytes = self._head_bytes = 0
        self._head_done = True
        self.scope["extensions"] = {CHUNKS: {"begun": self._chunks}}
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._unparsed_bytes = 0
        if not self.parser.should_upgrade():
            self._in_message = False
            super().on_message_complete()

    def shutdown(self) -> None:
        """The listener is leaving: nothing is waited for any more, except an answer under way."""
        if self.cycle is None or self.cycle.response_complete:
            self._direct.close()
        else:
            self.cycle.keep_alive = False

    def _chunks(self) -> "_Chunks | None":
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started and cycle.chunked_encoding
        return _Chunks(cycle) if begun and self.scope["method"] != "HEAD" else None

    def _count(self, head_bytes: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += head_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES:
            self._refuse(_head_too_large())
            raise _NotParsed

    def _parse_without_upgrade(self, rest: bytes) -> None:
        """The parser takes what follows an upgrade's head for another protocol; give it the plain request."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(InvalidRequest("This server is no proxy."))
            return
        head = [method + b" " + self.url + b" HTTP/1.1"]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                kept = b", ".join(token for token in tokens if token.lower() not in _UPGRADE_TOKENS)
            if name != b"upgrade" and kept:
                head.append(name + b": " + kept)
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def _refuse(self, error: ApiError) -> None:
        """Answer what never became a whole request, and close."""
        self._deaf = True
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or not self._in_message:
                self._direct.abort()
                return
            # Its body is what broke: whoever reads it learns that no more comes, and says nothing himself.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body, status = to_json(errors.body(error)), errors.http_status(error)
        head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._direct.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self._close_gently()

    def _close_gently(self) -> None:
        """Say that nothing more comes, and drop what the client still says; `undelivered` closes."""
        if self._close_by_s is not None or self._direct.is_closing():
            return
        self._deaf = True
        self._close_by_s = self.loop.time() + UNREAD_BODY_S
        self.flow.resume_reading()
        self._direct.write_eof()


class _Chunks:
    """See `transport.Chunks`; what `RequestResponseCycle.send` does, without its checks of each message."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def open(self) -> bool:
        cycle = self._cycle
        return not (self._flow.write_paused or cycle.disconnected or cycle.response_complete)

    def write(self, piece: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(piece), piece))


class _Transport(asyncio.Transport):
    """A connection's transport as uvicorn sees it: closing is left to the connection."""

    def __init__(self, direct: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._direct = direct
        self._close = close
        self._closing = False

    def close(self) -> None:
        self._closing = True
        self._close()

    def is_closing(self) -> bool:
        return self._closing or self._direct.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._direct.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._direct.write(data)

    def pause_reading(self) -> None:
        self._direct.pause_reading()

    def resume_reading(self) -> None:
        if not self._direct.is_closing():
            self._direct.resume_reading()


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"The request's line and headers are over {HEAD_LIMIT_BYTES >> 10} KiB.")


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds until the client's kernel has confirmed them (`SIOCOUTQ`)."""
    held = array.array("i", [0])
    bound: socket.socket = transport.get_extra_info("socket")
    fcntl.ioctl(bound.fileno(), termios.TIOCOUTQ, held)
    return held[0]
