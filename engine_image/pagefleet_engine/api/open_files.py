"""How many files and sockets this process may have open, and how many of them clients may take."""

import resource

RESERVED = 128
"""Kept for what clients must not shut out: probes, scrapes, the core's socket, the model's files."""


def raise_limit() -> None:
    """Take as many as the process may: many container runtimes start it with 1024, which one burst uses up."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """Connections of clients at the same time; at least half of what there is."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(soft - RESERVED, soft // 2)
