"""A rank that fails ends the group with its last words, and takes nobody's time."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed

from pagefleet_engine.runner.cuda import parallel
from pagefleet_engine.runner.cuda.orders import Failed
from pagefleet_engine.runner.cuda.parallel import Leader
from pagefleet_engine.runner.cuda.watch import RankWatch
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.steps import RunnerBroken
from tests.pagefleet_engine.runner import step_driver
from tests.pagefleet_engine.runner.cuda.parallel_rank import (
    BLOCKS,
    RANK_MODULE,
    SHAPE,
    launch_of,
    runner_of,
    stand_in_for_a_rank,
)
from tests.pagefleet_engine.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter; see the gpu test"),
]


@pytest.fixture
def host() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        stand_in_for_a_rank(patch)
        yield


def test_what_a_rank_cannot_load_is_told_by_the_first(host: None, tmp_path: Path) -> None:
    launch = launch_of(f"file://{tmp_path}/none", 2)
    leader = Leader(launch, module=RANK_MODULE, backend="gloo")
    try:
        with pytest.raises(LaunchImpossible, match=r"rank 1: .*there is no"):
            leader.join()
    finally:
        leader.close()


def test_a_rank_that_dies_ends_the_group(host: None, tmp_path: Path) -> None:
    uri = f"file://{write_tiny_model(tmp_path / 'model', SHAPE)}"
    leader = Leader(launch_of(uri, 2), module=RANK_MODULE, backend="gloo")
    try:
        runner = runner_of(launch_of(uri, 2), leader)
        [sequence] = step_driver.sequences([[5]], BLOCKS, 100)
        step_driver.advance(runner, [(sequence, None)])
        os.kill(leader.process_ids[0], signal.SIGKILL)
        with pytest.raises(RunnerBroken, match=r"rank 1 was ended by signal SIGKILL"):
            step_driver.run_batched(runner, [sequence], 50)
    finally:
        leader.close()
        torch.distributed.destroy_process_group()


def test_nobody_waits_for_a_device_when_a_rank_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def query(self) -> bool:
            return False

    monkeypatch.setattr(torch.cuda, "Event", Never)
    watch = RankWatch([], lambda: None)
    monkeypatch.setattr(parallel, "STEP_TIMEOUT_S", 0.01)
    with pytest.raises(RunnerBroken, match="not done after"):
        parallel.WatchedEvent(watch).synchronize()
    threading.Thread(target=watch.fail, args=(Failed("broken", "rank 1: out of memory"),)).start()
    monkeypatch.setattr(parallel, "STEP_TIMEOUT_S", 5.0)
    with pytest.raises(RunnerBroken, match="rank 1: out of memory"):
        parallel.WatchedEvent(watch).synchronize()
