"""How far a download is: bytes, rate and the time that is left."""

import threading
import time
from collections.abc import Callable

from pagefleet_api.download import DownloadProgress


class Meter:
    """Counts bytes from several threads.

    total_bytes: None where it is not known. done_bytes: of all, those that are there already.
    """

    def __init__(
        self, total_bytes: int | None, done_bytes: int = 0, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_bytes, self._clock_s = total_bytes, clock_s
        self._done_bytes, self._lock = done_bytes, threading.Lock()
        self._measured_bytes, self._measured_s = done_bytes, clock_s()
        self._bytes_per_s: int | None = None

    def add(self, count: int) -> None:
        """So many bytes came; a negative number is bytes that are thrown away."""
        with self._lock:
            self._done_bytes += count

    def measure(self) -> DownloadProgress:
        """How far it is, with the rate since the last measurement."""
        now_s, done = self._clock_s(), self._done_bytes
        came, took_s = done - self._measured_bytes, now_s - self._measured_s
        self._measured_bytes, self._measured_s = done, now_s
        self._bytes_per_s = round(max(came, 0) / max(took_s, 1e-3))
        return self.progress()

    def progress(self) -> DownloadProgress:
        """How far it is, with the rate of the last measurement."""
        return DownloadProgress(
            bytes=max(self._done_bytes, 0), total_bytes=self._total_bytes, bytes_per_second=self._bytes_per_s
        )


def fields(progress: DownloadProgress) -> dict[str, object]:
    """As a line of the log has it."""
    left_s = progress.seconds_left
    return {
        "bytes": progress.bytes,
        "total_bytes": progress.total_bytes,
        "bytes_per_s": progress.bytes_per_second,
        "eta_s": None if left_s is None else round(left_s),
    }
