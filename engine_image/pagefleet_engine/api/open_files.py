"""How many files and sockets this process may have open, and how many of them clients may take."""

import contextlib
import resource

RESERVED = 128
"""Kept for what clients must not shut out: probes, scrapes, the core's socket, the model's files."""

LEAST, PER_SEQUENCE = 4096, 4
"""Each connection costs memory, whether anything comes on it or not, and files are often half a million."""


_MOST_OF_UNBOUNDED = 10_240
"""macOS's `OPEN_MAX`: where there is no limit it takes this number and not "unlimited" (its setrlimit(2))."""


def raise_limit() -> None:
    """Take as many as the process may: many container runtimes start it with 1024, which one burst uses up.

    Where none are to be had the limit stays as it is, and `most_connections` goes by it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    for wanted in (hard, max(soft, _MOST_OF_UNBOUNDED)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


def most_connections(sequences: int) -> int:
    """Connections of clients at the same time: what files allow, and no more than serve a full queue several times.

    sequences: that may be open, running and waiting.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(LEAST, PER_SEQUENCE * sequences)
    return wanted if soft == resource.RLIM_INFINITY else min(max(soft - RESERVED, soft // 2), wanted)
