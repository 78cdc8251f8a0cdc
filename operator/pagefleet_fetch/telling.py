"""Tells over HTTP how far a download is, to whoever asks: numbers of bytes, and nothing of the model."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from pagefleet_api.download import HELD, PATH, DownloadProgress

log = logging.getLogger(__name__)

_ASK_LIMIT_S = 5.0


class Address(NamedTuple):
    """Where to listen; without a host, on every address."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """From HOST:PORT or :PORT. Raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{text!r} is no address; write :8001 or 127.0.0.1:8001")
        return cls(host.strip("[]"), int(port))


class Board:
    """What is told: nothing before `show`. held: the model is there, and stays."""

    held = False

    def __init__(self) -> None:
        self._read: Callable[[], DownloadProgress] | None = None

    def show(self, read: Callable[[], DownloadProgress]) -> None:
        """Tell what `read` gives from now on."""
        self._read = read

    def text(self, path: str) -> bytes | None:
        """What a path is answered with; None where there is nothing to tell, or not yet."""
        if path == HELD:
            return b"{}" if self.held else None
        if path != PATH or self._read is None:
            return None
        return self._read().model_dump_json(by_alias=True).encode()


@contextlib.contextmanager
def telling(board: Board, address: Address | None) -> Iterator[None]:
    """Answer while the block runs. A download goes on without an address, and where it is taken."""
    try:
        server = None if address is None else _Server(address, type("Answers", (_Handler,), {"board": board}))
    except OSError as error:
        log.warning("progress_not_told", extra={"error": str(error)})
        server = None
    if server is None:
        yield
        return
    thread = threading.Thread(target=server.serve_forever, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: Address, handler: type["_Handler"]) -> None:
        both = not address.host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
        self._both = both
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    board: Board
    timeout = _ASK_LIMIT_S

    def log_message(self, *_: object) -> None:
        """Whoever asks every few seconds is no news."""

    def do_GET(self) -> None:
        body = self.board.text(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")
