"""A group of ranks that share one copy of the model: one process and one GPU each.

The first rank lives in the core process, starts the others, and tells them each step over a socket (`orders`).
Partial sums and sampled tokens travel by NCCL from device to device, inside CUDA graphs too. A rank that fails or dies
ends the group: the first rank raises what it said, and never waits for it without end.
"""

import atexit
import faulthandler
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pagefleet_api.launch import Launch
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runner.cuda.orders import Agreed, Capture, Link, LinkClosed, Message, StepOrder, Stop
from pagefleet_engine.runner.cuda.peers import Stepper
from pagefleet_engine.runner.cuda.shards import Shard, shard_config
from pagefleet_engine.runner.cuda.watch import RankWatch, start_rank
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.steps import RunnerBroken, StepPlan

RANK_MODULE = "pagefleet_engine.runner.cuda.rank"
STEP_TIMEOUT_S = 60.0
"""A step that takes longer hangs: the largest take about a second."""
ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""NVLink multicast stays off: a process that dies in it can leave a host's switch unusable for everybody there."""
_SAME_MACHINE = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
_COLLECTIVE_TIMEOUT = timedelta(seconds=2 * STEP_TIMEOUT_S)
_SPINS = 1000
_POLL_S = 50e-6
_LOOK_S = 0.5
_LEAVE_BY_ITSELF_S = 5.0


class _Group:
    """What all ranks do alike."""

    def __init__(self, shard: Shard, store: Path, backend: str) -> None:
        self._shard, self._store, self._backend = shard, store, backend

    @property
    def shard(self) -> Shard:
        """See `Peers`."""
        return self._shard

    def reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """See `Peers`."""
        dist.all_reduce(partial)
        return partial

    def share(self, tokens: torch.Tensor) -> None:
        """See `Peers`."""
        dist.broadcast(tokens, 0)

    def _form(self) -> None:
        device = torch.device("cuda", torch.cuda.current_device()) if self._backend == "nccl" else None
        dist.init_process_group(
            self._backend, store=dist.FileStore(str(self._store), self._shard.world), rank=self._shard.rank,
            world_size=self._shard.world, timeout=_COLLECTIVE_TIMEOUT, device_id=device,
        )  # fmt: skip
        # connections take memory: they are made before what is left is measured
        self.reduce(torch.zeros(1, device=device))
        self.share(torch.zeros(1, dtype=torch.int32, device=device))


class Leader(_Group):
    """The first rank's view (`peers.Peers`)."""

    def __init__(self, launch: Launch, *, module: str = RANK_MODULE, backend: str = "nccl") -> None:
        """Start the other ranks' processes. They die with the thread that makes this object, or with `close`."""
        self._folder = Path(tempfile.mkdtemp(prefix="pagefleet-ranks-"))
        super().__init__(Shard(0, launch.tensor_parallel_size), self._folder / "store", backend)
        os.environ.update(ENVIRONMENT | _SAME_MACHINE)
        arguments = ["--store", str(self._store), *launch.argv()]
        self._ranks = [start_rank(module, rank, arguments) for rank in range(1, self._shard.world)]
        self._watch = RankWatch(self._ranks, dist.distributed_c10d._abort_process_group)
        atexit.register(self._close_at_exit)

    @property
    def process_ids(self) -> list[int]:
        """Of the other ranks."""
        return [each.process.pid for each in self._ranks]

    def join(self) -> None:
        """See `Peers`. Raises LaunchImpossible or RunnerBroken when a rank cannot load its part."""
        self.smallest(0)
        self._form()

    def smallest(self, value: int) -> int:
        """See `Peers`."""
        for each in self._ranks:
            said = self._watch.receive(each.rank)
            value = min(value, said.value if isinstance(said, Agreed) else value)
        self._tell(Agreed(value))
        return value

    @contextmanager
    def together(self, order: StepOrder | Capture) -> Iterator[None]:
        """See `Peers`. Whatever goes wrong after the order leaves the ranks apart, so it raises RunnerBroken."""
        self._watch.check()
        self._tell(order)
        try:
            yield
        except RunnerBroken:
            raise
        except Exception as error:
            self._watch.check(_LOOK_S)
            raise RunnerBroken(f"a step broke off on one of several GPUs: {type(error).__name__}: {error}") from error

    def compute(self, runner: Stepper, plan: StepPlan) -> None:
        """See `Peers`."""
        runner.launch(plan).results()

    def event(self) -> Any:
        """See `Peers`."""
        return WatchedEvent(self._watch)

    def close(self) -> None:
        """End the other ranks' processes; may be called again."""
        atexit.unregister(self._close_at_exit)
        self._watch.end()
        for each in self._ranks:
            with suppress(LinkClosed):
                each.link.send(Stop())
        for each in self._ranks:
            try:
                each.process.wait(_LEAVE_BY_ITSELF_S)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
            each.link.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _close_at_exit(self) -> None:
        self.close()
        # NCCL may wait for graphs that hold its connections while the interpreter is taken down
        faulthandler.dump_traceback_later(_LEAVE_BY_ITSELF_S, exit=True)

    def _tell(self, message: Message) -> None:
        try:
            for each in self._ranks:
                each.link.send(message)
        except LinkClosed as error:
            self._watch.check(_LOOK_S)
            raise RunnerBroken("a rank of the group has gone") from error


class Follower(_Group):
    """Another rank's view (`peers.Peers`)."""

    def __init__(self, shard: Shard, store: Path, link: Link, *, backend: str = "nccl") -> None:
        super().__init__(shard, store, backend)
        self._link = link
        self._last: tuple[Any, float] | None = None

    def join(self) -> None:
        """See `Peers`. Raises LinkClosed when the first rank has gone."""
        self.smallest(0)
        self._form()

    def smallest(self, value: int) -> int:
        """See `Peers`."""
        self._link.send(Agreed(value))
        answer = self._link.receive()
        if not isinstance(answer, Agreed):
            raise LinkClosed(f"the first rank said {type(answer).__name__}")
        return answer.value

    @contextmanager
    def together(self, order: StepOrder | Capture) -> Iterator[None]:
        """See `Peers`."""
        yield

    def compute(self, runner: Stepper, plan: StepPlan) -> None:
        """See `Peers`: the first rank's order says how."""
        order = self.next_order()
        if not isinstance(order, StepOrder):
            raise LinkClosed(f"the first rank said {type(order).__name__}")
        runner.follow(order)

    def event(self) -> Any:
        """See `Peers`."""
        return torch.cuda.Event()

    def next_order(self) -> Message:
        """Wait for the next order; meanwhile looks after the last step, whose failure nobody else would see.

        Raises what the device raises, RunnerBroken for a step that hangs, LinkClosed when the first rank has gone.
        """
        while (order := self._link.receive(_LOOK_S)) is None:
            self._look()
        self._look()
        return order

    def launched(self) -> None:
        """A step was sent to the device."""
        if self._last is None:
            done = torch.cuda.Event()
            done.record()
            self._last = done, time.monotonic() + STEP_TIMEOUT_S

    def _look(self) -> None:
        if self._last is None:
            return
        done, until = self._last
        if done.query():
            self._last = None
        elif time.monotonic() > until:
            raise RunnerBroken(f"a step was not done after {STEP_TIMEOUT_S:g} s")


class WatchedEvent:
    """A device event whose wait ends when a rank has failed."""

    def __init__(self, watch: RankWatch) -> None:
        self._watch, self._event = watch, torch.cuda.Event()

    def record(self) -> None:
        """In the current stream."""
        self._event.record()

    def synchronize(self) -> None:
        """Wait; raises RunnerBroken when a rank has failed, or after STEP_TIMEOUT_S."""
        for _ in range(_SPINS):
            if self._event.query():
                return
        until = time.monotonic() + STEP_TIMEOUT_S
        while not self._event.query():
            self._watch.check()
            if time.monotonic() > until:
                raise RunnerBroken(f"a step was not done after {STEP_TIMEOUT_S:g} s on the first of several GPUs")
            time.sleep(_POLL_S)


@contextmanager
def leading(launch: Launch, config: ModelConfig) -> Iterator[Leader]:
    """The group that a launch asks for, to load the model with; an exception ends it.

    Raises LaunchImpossible when the model cannot be shared out, or on fewer GPUs.
    """
    wanted, there = launch.tensor_parallel_size, torch.cuda.device_count()
    shard_config(config, Shard(0, wanted))
    if there < wanted:
        raise LaunchImpossible(f"--tensor-parallel-size {wanted}: torch sees {there} GPUs here; give at most that")
    if launch.batch_invariant and wanted > 2:
        raise LaunchImpossible(
            f"--batch-invariant with --tensor-parallel-size {wanted}: in which order more than two GPUs' sums are "
            "added depends on the batch; give at most 2"
        )
    group = Leader(launch)
    try:
        yield group
    except Exception:
        group.close()
        raise
