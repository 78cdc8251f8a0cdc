"""What a run shows of itself while it works: on the standard error, apart from the rows."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

STILL_S = 15.0


@contextmanager
def telling(what: str, still_s: float = STILL_S) -> Iterator[None]:
    """Say what begins, and every `still_s` seconds how long it has taken so far."""
    began_s, over = time.perf_counter(), threading.Event()

    def still() -> None:
        while not over.wait(still_s):
            line(f"{what}: {time.perf_counter() - began_s:.0f} s so far")

    line(what)
    teller = threading.Thread(target=still, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def line(text: str) -> None:
    """One line with the time of day."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)
