"""Whether bytes come fast enough: a server that sends a few of them for ever would be followed for ever."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pagefleet_fetch.errors import TooSlow

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Floor:
    """The least rate of a download: all its files together, on average over `window_s` of waiting for bytes."""

    bytes_per_s: int = 100 << 10
    window_s: float = 60.0

    @property
    def window_bytes(self) -> float:
        """What a window brings at that rate."""
        return self.bytes_per_s * self.window_s


class Pace:
    """Follows several files at a time; each must bring its even share of the floor, so that a stalled one is found
    while the others are fast.
    """

    def __init__(self, floor: Floor, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._floor, self._clock_s = floor, clock_s
        self._open, self._lock = 0, threading.Lock()

    def follow(self, chunks: Iterator[bytes], what: str) -> Iterator[bytes]:
        """The same chunks. Raises TooSlow, naming `what`, after a window that brought too few bytes.

        Only the time until the source gives a chunk counts: a slow disk here is no fault of a server.
        """
        self._count(1)
        try:
            waited_s, came_bytes = 0.0, 0
            while True:
                asked_s = self._clock_s()
                chunk = next(chunks, None)
                if chunk is None:
                    return
                waited_s, came_bytes = waited_s + self._clock_s() - asked_s, came_bytes + len(chunk)
                yield chunk
                if waited_s >= self._floor.window_s:
                    self._check(what, came_bytes / waited_s, waited_s)
                    waited_s, came_bytes = 0.0, 0
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._open += change

    def _check(self, what: str, bytes_per_s: float, waited_s: float) -> None:
        share = self._floor.bytes_per_s / max(self._open, 1)
        if bytes_per_s < share:
            raise TooSlow(
                f"{what} came at {bytes_per_s:.0f} bytes/s for {waited_s:.3g} s, less than the {share:.0f} bytes/s "
                "that are asked for (--min-rate, shared by the files under way): use a nearer mirror, or a bucket"
            )


def within(limit_s: float, call: Callable[[], _Answer]) -> _Answer:
    """What it gives or raises. Raises TimeoutError after `limit_s`.

    HTTP libraries bound the time between two bytes, not that of the whole answer. A call that is given up goes on in
    a thread of its own, which ends with the process at the latest.
    """
    done: list[_Answer] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as error:  # the caller's to handle, whatever it is
            failed.append(error)

    thread = threading.Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"no whole answer within {limit_s:g} s")
    return done[0]
