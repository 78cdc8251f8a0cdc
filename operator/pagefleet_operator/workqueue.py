"""Keys that wait for their pass: each at most once, never two passes over one key at a time."""

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """A queue of keys, serial for each key.

    A key that is added while its pass runs comes again after it. Failures wait `first_s`, then twice as long
    each time up to `cap_s`; there is no jitter, as keys of one process do not meet anywhere.
    Source: the idea of client-go's workqueue (https://pkg.go.dev/k8s.io/client-go/util/workqueue).
    """

    def __init__(self, *, first_s: float, cap_s: float) -> None:
        self._first_s, self._cap_s = first_s, cap_s
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: dict[K, bool] = {}
        """Keys to come again after their running pass; True when not even a failure of that pass delays it."""
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}

    def __len__(self) -> int:
        """Keys that are due and have not begun."""
        return len(self._waiting)

    def add(self, key: K) -> None:
        """`key` is due now."""
        self._cancel_timer(key)
        if key in self._running:
            self._again[key] = True
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def nudge(self, key: K) -> None:
        """`key` is due now, unless it waits for another try after a failure, or its running pass fails: a steady
        stream of small news, the echoes of own writes among them, must not undo the waiting."""
        if key in self._running:
            self._again.setdefault(key, False)
        elif key not in self._failures:
            self.add(key)

    def add_after(self, key: K, delay_s: float) -> None:
        """`key` is due in `delay_s` seconds; the earliest of several such times counts."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= due_s:
            return
        self._cancel_timer(key)
        self._timers[key] = loop.call_at(due_s, self.add, key)

    async def get(self) -> K:
        """The next key; the caller gives it back with `done`."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._running.add(key)
        return key

    def done(self, key: K) -> None:
        """The pass over `key` is over; it is due at once when it was added meanwhile."""
        self._running.discard(key)
        at_once = self._again.pop(key, None)
        if at_once is None:
            return
        if at_once:
            self.add(key)
        else:
            self.nudge(key)

    def succeeded(self, key: K) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)

    def failed(self, key: K) -> float:
        """Try `key` again later, whatever else was planned for it; returns in how many seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay_s = min(self._first_s * 2.0 ** min(count, 30), self._cap_s)
        self._cancel_timer(key)
        self.add_after(key, delay_s)
        return delay_s

    def _cancel_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
