"""The operator as a process of its own, with other intervals than the usual ones.

A server that has everything imported forks each one: importing kopf and the Kubernetes client takes longer than most
tests do.
"""

import asyncio
import dataclasses
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pagefleet_operator import logs, settings

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pagefleet_operator.program", "pytest"])


def nothing() -> None:
    """An operator as it is."""


def _operate(
    timings: Mapping[str, Any],
    flags: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    first: Callable[[], None],
) -> None:
    """The same program as `python -m pagefleet_operator`; only the waiting is shorter. `first` may break it."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), sys.stdout.fileno())
        os.dup2(sink.fileno(), sys.stderr.fileno())
    from pagefleet_operator import program

    first()
    parsed = settings.parse(flags, os.environ)
    logs.configure(parsed.log_format)
    asyncio.run(program.run(dataclasses.replace(parsed, timings=dataclasses.replace(parsed.timings, **timings))))


class Forked:
    """One operator process."""

    def __init__(
        self,
        timings: Mapping[str, Any],
        flags: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        first: Callable[[], None] = nothing,
    ) -> None:
        self._process = _FORKS.Process(target=_operate, args=(timings, flags, environment, log, first), daemon=True)
        self._process.start()

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        self._process.join(timeout_s)
        return self._process.exitcode is not None
