"""What goes out on one connection, past or beneath what uvicorn does."""

import array
import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class UntilClose(int):
    """The length of an answer that ends where its connection does; `RequestResponseCycle` counts it down."""

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: int) -> "UntilClose":
        return self

    def __ne__(self, other: object) -> bool:
        return False


class DirectChunks:
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


class GentleTransport(asyncio.Transport):
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


def unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds until the client's kernel has confirmed them (`SIOCOUTQ`)."""
    held = array.array("i", [0])
    bound: socket.socket = transport.get_extra_info("socket")
    fcntl.ioctl(bound.fileno(), termios.TIOCOUTQ, held)
    return held[0]
