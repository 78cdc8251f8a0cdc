"""What a long command is doing, said every few seconds: a line for each step in flight, with the time so far."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self


def line(elapsed_s: float, steps: Mapping[str, str]) -> str:
    """One line about all steps. Pure."""
    return f"[{elapsed_s:4.0f} s] " + "; ".join(f"{name}: {words}" for name, words in steps.items())


class Progress:
    """Used as a context; within it, `teller(name)` gives the function that says what step `name` does."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s, self._started_s = interval_s, time.monotonic()
        self._steps: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def teller(self, name: str) -> Callable[[str], None]:
        def tell(words: str) -> None:
            self._steps[name] = words

        return tell

    def done(self, name: str, words: str = "done") -> None:
        """Says so at once, and forgets the step."""
        self._steps.pop(name, None)
        self._print({name: words})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _repeat(self) -> None:
        while not self._stop.wait(self._interval_s):
            if self._steps:
                self._print(dict(self._steps))

    def _print(self, steps: Mapping[str, str]) -> None:
        print(line(time.monotonic() - self._started_s, steps), file=sys.stderr, flush=True)
