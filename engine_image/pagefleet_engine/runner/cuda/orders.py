"""What the first rank tells the others, and they tell it: framed msgpack over a socket pair.

A step is told as the device gets it: the packed array with its counts. Nothing that an earlier step told comes again.
"""

import contextlib
import select
import socket
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from pagefleet_engine.kernels.prepare import PackedCounts
from pagefleet_engine.runner.cuda.chunks import ChunkPlan
from pagefleet_engine.runner.cuda.packing import Ints
from pagefleet_engine.wire import FRAME_HEADER_BYTES

_RECEIVE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StepOrder:
    """A step without its requests: all that a rank needs to compute its part.

    `values` go to `kernels.prepare`. `graph_size` is the decode graph to replay. `chunks` (None: decodes alone)
    and `chunk_values` say what to do with prompts. With `resampled` the sampled tokens are sent round once more.
    """

    values: Ints
    counts: PackedCounts
    graph_size: int | None
    chunks: ChunkPlan | None
    chunk_values: Ints | None
    resampled: bool


class Capture(msgspec.Struct, frozen=True, tag="capture"):
    """Capture what is missing next, a decode step or the segments of a step with prompts."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Nothing more comes; leave."""


class Agreed(msgspec.Struct, frozen=True, tag="agreed"):
    """A number: a rank's own, or on the way back the smallest of all."""

    value: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A rank's last words: what the user can put right ("impossible"), or a fault ("broken")."""

    kind: Literal["impossible", "broken"]
    reason: str


class _Step(msgspec.Struct, frozen=True, tag="step"):
    values: bytes
    counts: PackedCounts
    graph_size: int | None
    chunks: ChunkPlan | None
    chunk_values: bytes | None
    resampled: bool


Message = StepOrder | Capture | Stop | Agreed | Failed
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[_Step | Capture | Stop | Agreed | Failed] = msgspec.msgpack.Decoder(
    _Step | Capture | Stop | Agreed | Failed
)


def encode(message: Message) -> bytes:
    """The body of a frame."""
    if not isinstance(message, StepOrder):
        return _ENCODER.encode(message)
    chunk_values = None if message.chunk_values is None else message.chunk_values.tobytes()
    step = _Step(
        message.values.tobytes(), message.counts, message.graph_size, message.chunks, chunk_values, message.resampled
    )
    return _ENCODER.encode(step)


def decode(body: bytes | bytearray) -> Message:
    """The inverse of `encode`."""
    message = _DECODER.decode(body)
    if not isinstance(message, _Step):
        return message
    chunk_values = None if message.chunk_values is None else np.frombuffer(message.chunk_values, np.int32)
    return StepOrder(
        np.frombuffer(message.values, np.int32), message.counts, message.graph_size, message.chunks, chunk_values,
        message.resampled,
    )  # fmt: skip


class LinkClosed(Exception):
    """The process at the other end has closed the link or has died."""


class Link:
    """One end of a blocking socket; one thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(True)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: Message) -> None:
        """Write one message. Raises LinkClosed."""
        body = encode(message)
        try:
            self._socket.sendall(len(body).to_bytes(FRAME_HEADER_BYTES, "big") + body)
        except OSError as error:
            raise LinkClosed("the process at the other end has gone") from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when none has begun to arrive after `timeout_s`. Raises LinkClosed."""
        if timeout_s is not None and not self._poll.poll(timeout_s * 1000):
            return None
        size = int.from_bytes(self._exactly(FRAME_HEADER_BYTES), "big")
        return decode(self._exactly(size))

    def close(self) -> None:
        """The other end reads what was sent, and then the end; a receive that waits here ends too."""
        with contextlib.suppress(OSError):  # the other end may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        received = bytearray()
        while len(received) < size:
            try:
                part = self._socket.recv(min(size - len(received), _RECEIVE_BYTES))
            except OSError as error:
                raise LinkClosed("the link broke") from error
            if not part:
                raise LinkClosed("the process at the other end has gone")
            received += part
        return received
