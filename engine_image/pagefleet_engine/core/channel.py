"""The socket between the API process and the core process, as each side uses it.

The API process listens on a unix stream socket and starts the core, which connects. API → core: a frame
holds a list of `ToCore` messages. Core → API: a frame holds one `FromCore` message. The core blocks on the
socket; the API process reads with asyncio and writes `encode_frame`'s bytes to its `StreamWriter`.
"""

import asyncio
import select
import socket
from collections.abc import Sequence

import msgspec

from pagefleet_engine.wire import FRAME_HEADER_BYTES, FromCore, ToCore

RECEIVE_BYTES = 1 << 16
_ENCODER = msgspec.msgpack.Encoder()
_TO_CORE: msgspec.msgpack.Decoder[list[ToCore]] = msgspec.msgpack.Decoder(list[ToCore])
_FROM_CORE: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)


class ChannelClosed(Exception):
    """The other side has closed the socket or has died; nothing more can be said or heard."""


def encode_message(message: ToCore) -> msgspec.Raw:
    """One message, to be put into a frame later; raises when it cannot be encoded (OverflowError)."""
    return msgspec.Raw(_ENCODER.encode(message))


def encode_frame(message: FromCore | Sequence[ToCore | msgspec.Raw]) -> bytes:
    """One frame: header and msgpack."""
    frame = bytearray(FRAME_HEADER_BYTES)
    _ENCODER.encode_into(message, frame, FRAME_HEADER_BYTES)
    body_bytes = len(frame) - FRAME_HEADER_BYTES
    frame[:FRAME_HEADER_BYTES] = body_bytes.to_bytes(FRAME_HEADER_BYTES, "big")
    return bytes(frame)


async def read_frame(reader: asyncio.StreamReader) -> FromCore:
    """The next message of the core; raises `ChannelClosed` when the core has gone.

    Not safe to cancel between header and body: let one task own the reader.
    """
    try:
        header = await reader.readexactly(FRAME_HEADER_BYTES)
        body = await reader.readexactly(int.from_bytes(header, "big"))
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise ChannelClosed("the core closed its socket") from error
    return _FROM_CORE.decode(body)


class CoreChannel:
    """The core's blocking end of the socket. `send` is for one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(True)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._received = bytearray()

    @classmethod
    def connect(cls, path: str) -> "CoreChannel":
        """Connect to the API process; raises `ChannelClosed` when nobody listens there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise ChannelClosed(f"nobody listens on {path}: {error.strerror}") from error
        return cls(connection)

    def send(self, message: FromCore) -> None:
        """Write one frame; blocks while the API process is behind, raises `ChannelClosed`."""
        try:
            self._socket.sendall(encode_frame(message))
        except OSError as error:
            raise ChannelClosed("the API process closed its socket") from error

    def receive(self, timeout_s: float) -> list[ToCore]:
        """Every whole message that has arrived; waits up to `timeout_s` for bytes when there are none.

        Raises `ChannelClosed` when the API process has gone: its last messages no longer matter.
        """
        if timeout_s > 0 and not self._poll.poll(timeout_s * 1000):
            return []
        while True:
            try:
                chunk = self._socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                raise ChannelClosed("the API process closed its socket") from error
            if not chunk:
                raise ChannelClosed("the API process closed its socket")
            self._received += chunk
            if len(chunk) < RECEIVE_BYTES:
                break
        return self._whole_messages()

    def close(self) -> None:
        """Close the socket; the other side reads to the end of what was sent."""
        self._socket.close()

    def _whole_messages(self) -> list[ToCore]:
        messages: list[ToCore] = []
        start, received = 0, self._received
        while len(received) - start >= FRAME_HEADER_BYTES:
            body = start + FRAME_HEADER_BYTES
            end = body + int.from_bytes(received[start:body], "big")
            if len(received) < end:
                break
            messages += _TO_CORE.decode(received[body:end])
            start = end
        del received[:start]
        return messages
