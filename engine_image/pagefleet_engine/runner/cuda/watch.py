"""The other ranks' processes as the first rank sees them: started, heard, watched, never left behind."""

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pagefleet_engine.runner.cuda.orders import Failed, Link, LinkClosed, Message
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.steps import RunnerBroken

_POLL_S = 0.1
_GRACE_S = 5.0
_DYING_S = 10.0
log = logging.getLogger(__name__)


class RankProcess(NamedTuple):
    """One other rank."""

    rank: int
    process: "subprocess.Popen[bytes]"
    link: Link


def start_rank(module: str, rank: int, arguments: Sequence[str]) -> RankProcess:
    """Start `module` with a link to this process. It dies with the thread that calls this."""
    own, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--rank", str(rank), "--link", str(theirs.fileno()), *arguments],
            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    return RankProcess(rank, process, Link(own))


class RankWatch:
    """Hears what ranks say and notices when one has gone.

    Whoever waits for the devices asks `check` meanwhile. A wait that cannot ask, such as a synchronisation while the
    model is loaded, is freed by `unblock` after a while; should even that not help, this process ends.
    """

    def __init__(self, ranks: Sequence[RankProcess], unblock: Callable[[], None]) -> None:
        self._unblock = unblock
        self._failure: Failed | None = None
        self._failed = threading.Lock()
        self._heard, self._told, self._ending = threading.Event(), threading.Event(), threading.Event()
        self._said: dict[int, queue.SimpleQueue[Message]] = {each.rank: queue.SimpleQueue() for each in ranks}
        for each in ranks:
            threading.Thread(target=self._listen, args=(each,), name=f"rank-{each.rank}", daemon=True).start()

    def check(self, patience_s: float = 0.0) -> None:
        """Raise LaunchImpossible or RunnerBroken when a rank has failed, with what it said.

        Somebody whose own part went wrong gives the cause a little time to be heard.
        """
        if patience_s:
            self._heard.wait(patience_s)
        failure = self._failure
        if failure is None:
            return
        self._told.set()
        raise LaunchImpossible(failure.reason) if failure.kind == "impossible" else RunnerBroken(failure.reason)

    def receive(self, rank: int) -> Message:
        """The next thing that a rank says; raises as `check` does."""
        while True:
            self.check()
            try:
                return self._said[rank].get(timeout=_POLL_S)
            except queue.Empty:
                continue

    def end(self) -> None:
        """Ranks may leave now."""
        self._ending.set()
        self._told.set()

    def _listen(self, each: RankProcess) -> None:
        try:
            while (message := each.link.receive()) is not None:
                if isinstance(message, Failed):
                    self.fail(Failed(message.kind, f"rank {each.rank}: {message.reason}"))
                    return
                self._said[each.rank].put(message)
        except LinkClosed:
            self.fail(Failed("broken", f"rank {each.rank} {_ending(each.process)}; its log says why"))

    def fail(self, failure: Failed) -> None:
        """A rank has failed. The first failure counts: the others are mostly its consequences."""
        with self._failed:
            if self._failure is not None or self._ending.is_set():
                return
            self._failure = failure
        self._heard.set()
        log.error("rank_failed", extra={"reason": failure.reason})
        if self._told.wait(_GRACE_S):
            return
        log.error("rank_failed_unheard", extra={"reason": failure.reason})
        try:
            self._unblock()
        finally:
            if not self._told.wait(_DYING_S):
                os._exit(1)


def _ending(process: "subprocess.Popen[bytes]") -> str:
    try:
        status = process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        return "closed its link"
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by signal {signal.Signals(-status).name}"
