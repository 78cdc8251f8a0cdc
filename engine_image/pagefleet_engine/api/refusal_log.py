"""Refused connections in the log: a client that opens thousands must not fill it, nor hide what else happens."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

log = logging.getLogger(__name__)

_QUIET_S = 1.0


class Refusal(NamedTuple):
    """What a client was told. reason: of the latest one with that status and code."""

    status: int
    code: str
    reason: str


class RefusalLog:
    """The first refusal is told at once; those of the second after it in one line for each code, with their number.

    later: calls a function after seconds, as an event loop does. Not for several threads.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._held: Counter[tuple[int, str]] = Counter()
        self._reasons: dict[tuple[int, str], str] = {}
        self._quiet = False

    def add(self, refusal: Refusal) -> None:
        """Tell one, now or within a second."""
        if not self._quiet:
            _tell(refusal, 1)
            self._wait()
            return
        kind = (refusal.status, refusal.code)
        self._held[kind] += 1
        self._reasons[kind] = refusal.reason

    def _wait(self) -> None:
        self._quiet = True
        self._later(_QUIET_S, self._tell_held)

    def _tell_held(self) -> None:
        self._quiet = False
        if not self._held:
            return
        for (status, code), number in self._held.items():
            _tell(Refusal(status, code, self._reasons[status, code]), number)
        self._held.clear()
        self._reasons.clear()
        self._wait()


def _tell(refusal: Refusal, number: int) -> None:
    log.info("connection_refused", extra={**refusal._asdict(), "connections": number})
