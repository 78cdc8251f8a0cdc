"""The process of a rank after the first: it loads its part of the model and follows the first rank's orders.

`python -m pagefleet_engine.runner.cuda.rank --rank R --link FD --store PATH <launch flags>`; the first rank starts it.
"""

import argparse
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import setproctitle

from pagefleet_api.launch import Launch
from pagefleet_engine import logs
from pagefleet_engine.models.errors import ModelError
from pagefleet_engine.runner.cuda.orders import Capture, Failed, Link, LinkClosed, StepOrder, Stop
from pagefleet_engine.runner.cuda.parallel import Follower
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.runner.cuda.shards import Shard
from pagefleet_engine.runner.errors import LaunchImpossible

_PR_SET_PDEATHSIG = 1
log = logging.getLogger(__name__)


class Arguments(NamedTuple):
    """What the first rank says on the command line."""

    rank: int
    link: Link
    store: Path
    launch: Launch

    @property
    def shard(self) -> Shard:
        """This rank's place."""
        return Shard(self.rank, self.launch.tensor_parallel_size)


def arguments(argv: Sequence[str]) -> Arguments:
    """Read the command line. Exits with 2 as argparse does."""
    parser = argparse.ArgumentParser(prog="pagefleet_engine.runner.cuda.rank", add_help=False, allow_abbrev=False)
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--link", required=True, type=int, metavar="FD", help="socket to the first rank")
    parser.add_argument("--store", required=True, type=Path, help="file through which the group finds itself")
    own, rest = parser.parse_known_args(argv)
    return Arguments(own.rank, Link(socket.socket(fileno=own.link)), own.store, Launch.parse(rest))


def follow(runner: CudaRunner, peers: Follower) -> None:
    """Do what the first rank says until it says stop. Raises LinkClosed when it has gone."""
    while not isinstance(order := peers.next_order(), Stop):
        if isinstance(order, StepOrder):
            runner.follow(order)
            peers.launched()
        elif isinstance(order, Capture):
            runner.idle_work()


def serve(given: Arguments, load: Callable[[Arguments], tuple[CudaRunner, Follower]]) -> int:
    """Load and follow; the exit status. The first rank is told why when it goes wrong."""
    try:
        follow(*load(given))
    except LinkClosed as error:
        log.info("rank_ended", extra={"rank": given.rank, "reason": str(error)})
    except (ModelError, LaunchImpossible) as error:
        return _leave(given, Failed("impossible", str(error)))
    except Exception as error:
        log.exception("rank_failed", extra={"rank": given.rank})
        return _leave(given, Failed("broken", f"{type(error).__name__}: {error}"))
    return 0


def belong_to_the_first_rank(rank: int) -> None:
    """Live and end by the first rank's word; the kernel takes this process with it (see `core.run`)."""
    setproctitle.setproctitle(f"pagefleet-engine: rank {rank}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        log.warning("no_parent_death_signal", extra={"errno": ctypes.get_errno()})


def _load(given: Arguments) -> tuple[CudaRunner, Follower]:
    import torch

    from pagefleet_engine.runner import loading

    torch.cuda.set_device(given.rank)
    peers = Follower(given.shard, given.store, given.link)
    return loading.load_rank(given.launch, peers), peers


def _leave(given: Arguments, words: Failed) -> int:
    try:
        given.link.send(words)
    except LinkClosed:
        log.info("failure_unheard", extra={"rank": given.rank})
    return 1


def main(argv: Sequence[str]) -> None:
    """Serve, then end at once: what the group still has on its way must not keep this process."""
    logs.configure()
    given = arguments(argv)
    belong_to_the_first_rank(given.rank)
    status = serve(given, _load)
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
