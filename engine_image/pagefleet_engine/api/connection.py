"""One client's connection, where uvicorn's own would lose bytes, requests or the end of a client."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pagefleet_engine.api import errors
from pagefleet_engine.api.answers import to_json
from pagefleet_engine.api.errors import ApiError, HeadStalled, HeadTooLarge, InvalidRequest, TooManyConnections
from pagefleet_engine.api.outgoing import DirectChunks, GentleTransport, UntilClose, unacknowledged_bytes
from pagefleet_engine.api.transport import CHUNKS

HEAD_LIMIT_BYTES = 64 << 10
"""Request line and headers, or the trailers of a chunked body."""
HEAD_S = 30.0
"""Request line and headers must have come this long after their first byte."""
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
    - A head over `HEAD_LIMIT_BYTES` is refused with 431, one that takes longer than `HEAD_S` with 408, and what is
      one connection more than `most_connections` with 503.
    - A connection on which nothing comes is closed like one that was kept alive.
    - HTTP/1.0 knows no chunks (RFC 9112 section 6.1): a stream to it ends with the connection.
    - What is refused here, before it became a request, is told to `refused`.
    - A closed connection stays until the client has taken its last bytes, and while it sends a body that
      nobody wants: closing on unread bytes resets the connection and loses the answer.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        most_connections: int,
        refused: Callable[[ApiError], None],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._most_connections = most_connections
        self._refused = refused
        self._deaf = False
        self._in_message = False
        self._head_done = False
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._left_bytes = 0
        self._moved_at_s = self.loop.time()
        self._head_by_s: float | None = None
        self._close_by_s: float | None = None
        self._quiet = False
        """Nothing is under way and nothing left to take, since bytes last moved in either direction."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Keep the transport, so that closing it can wait."""
        self._direct = transport
        super().connection_made(GentleTransport(transport, self._close_gently))
        if len(self.connections) > self._most_connections:
            self._deaf = True
            self._tell(TooManyConnections("This server has too many connections.", retry_after_s=1))
            transport.close()
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Parse; bytes that will not be served are dropped, so that the client's end is still seen."""
        self._unset_keepalive_if_required()
        self._quiet = False
        if self._deaf:
            return
        self._unparsed_bytes += len(data)
        if self._head_by_s is None and not (self._in_message or self._answering):
            self._head_by_s = self.loop.time() + HEAD_S
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

        It also ends connections: those that stalled, in either direction, and those that were closed and have
        nothing left.
        """
        if self._quiet:  # thousands may be kept open, and a look at each takes its time
            return False
        if self._direct.is_closing() and not self._direct.get_write_buffer_size():  # its end is on its way
            return False
        if self._head_by_s is not None and now_s > self._head_by_s and not self._deaf:
            self._refuse(HeadStalled(f"The request's line and headers have not come whole in {HEAD_S:.0f} s."))
        left_bytes = self._direct.get_write_buffer_size() + unacknowledged_bytes(self._direct)
        if left_bytes != self._left_bytes or (self._answering and not self.flow.write_paused):
            self._left_bytes, self._moved_at_s = left_bytes, now_s
        elif left_bytes and now_s - self._moved_at_s > STALL_S:
            # There is no scope before a first request, and no path in that of a head which is not whole.
            log.info("client_stalled", extra={"left_bytes": left_bytes, "path": (self.scope or {}).get("path")})
            self.abort()
        if self._close_by_s is not None and not left_bytes and (not self._in_message or now_s > self._close_by_s):
            self._direct.close()
        self._quiet = not (left_bytes or self._answering or self._head_by_s or self._close_by_s)
        return left_bytes > 0

    def abort(self) -> None:
        """Drop the client and all that waits for it."""
        self._direct.abort()

    def on_message_begin(self) -> None:
        """Begin a request, unless the one before still waits for its answer."""
        if self._answering:
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
        self._head_by_s = None
        self.scope["extensions"] = {CHUNKS: {"begun": self._chunks}}
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            if self.parser.get_http_version() == "1.0":
                self.cycle.chunked_encoding, self.cycle.expected_content_length = False, UntilClose()

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

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _chunks(self) -> DirectChunks | None:
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started and cycle.chunked_encoding
        return DirectChunks(cycle) if begun and self.scope["method"] != "HEAD" else None

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
        if self._answering:
            if self.cycle.response_started or not self._in_message:
                self.abort()
                return
            # Its body is what broke: whoever reads it learns that no more comes, and says nothing himself.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._tell(error)
        self._close_gently()

    def _tell(self, error: ApiError) -> None:
        self._refused(error)
        self._direct.write(_whole(error))

    def _close_gently(self) -> None:
        """Say that nothing more comes, and drop what the client still says; `undelivered` closes."""
        if self._close_by_s is not None or self._direct.is_closing():
            return
        self._deaf = True
        self._close_by_s = self.loop.time() + UNREAD_BODY_S
        self._quiet = False
        self.flow.resume_reading()
        self._direct.write_eof()


def _whole(error: ApiError) -> bytes:
    """The last answer of a connection."""
    body = to_json(errors.body(error))
    fields = errors.headers(error) | {"content-type": "application/json", "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {errors.http_status(error)} \r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"The request's line and headers are over {HEAD_LIMIT_BYTES >> 10} KiB.")
