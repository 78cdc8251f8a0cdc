"""How far a download is: bytes, rate and the time that is left."""

import threading
import time
from collections.abc import Callable


class Meter:
    """Counts bytes from several threads."""

    def __init__(self, total_bytes: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._total_bytes, self._clock_s = total_bytes, clock_s
        self._done_bytes, self._lock = 0, threading.Lock()
        self._told_bytes, self._told_s = 0, clock_s()

    def add(self, count: int) -> None:
        """So many bytes came; a negative number is bytes that are thrown away."""
        with self._lock:
            self._done_bytes += count

    def report(self) -> dict[str, object]:
        """Bytes so far and in all, and the rate since the last report with the time that the rest takes at it."""
        now_s = self._clock_s()
        with self._lock:
            done = self._done_bytes
        rate = (done - self._told_bytes) / max(now_s - self._told_s, 1e-3)
        self._told_bytes, self._told_s = done, now_s
        left = max(self._total_bytes - done, 0)
        return {
            "bytes": done,
            "total_bytes": self._total_bytes,
            "bytes_per_s": round(rate),
            "eta_s": round(left / rate) if rate > 0 else None,
        }
