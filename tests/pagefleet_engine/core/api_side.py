"""The API process's end of the socket, blocking, for tests."""

import socket
from collections.abc import Iterator

import msgspec

from pagefleet_engine.core.channel import encode_frame
from pagefleet_engine.wire import FRAME_HEADER_BYTES, CoreStatus, FromCore, StepReport, ToCore, TokenEvent

_FROM_CORE: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)


class ApiSide:
    """Speaks to one core; a test fails by timeout rather than hang."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.settimeout(20)
        self.status: CoreStatus | None = None

    def say(self, *messages: ToCore) -> None:
        """One frame to the core."""
        self.connection.sendall(encode_frame(messages))

    def hear(self) -> FromCore | None:
        """The next message, or None when the core has closed the socket."""
        header = self._exactly(FRAME_HEADER_BYTES)
        if header is None:
            return None
        body = self._exactly(int.from_bytes(header, "big"))
        assert body is not None, "the core ended within a frame"
        message = _FROM_CORE.decode(body)
        if isinstance(message, StepReport):
            self.status = message.status
        return message

    def messages(self) -> Iterator[FromCore]:
        """Everything until the core closes the socket."""
        while (message := self.hear()) is not None:
            yield message

    def until_end_of(self, request_id: int) -> list[TokenEvent]:
        """The news of one request, to its end."""
        events: list[TokenEvent] = []
        for message in self.messages():
            assert isinstance(message, StepReport), message
            events += (event for event in message.events if event.request_id == request_id)
            if events and events[-1].finish_reason is not None:
                return events
        raise AssertionError("the core ended first")

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            chunk = self.connection.recv(count - len(data))
            if not chunk:
                return None
            data += chunk
        return bytes(data)
