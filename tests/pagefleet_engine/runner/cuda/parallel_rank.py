"""A rank on the host: Triton's interpreter and gloo in place of a GPU and NCCL; the process that the tests start."""

import logging
import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from pagefleet_api.launch import Adapter, Launch
from pagefleet_engine.runner import loading
from pagefleet_engine.runner.cuda import loading as gpu_loading
from pagefleet_engine.runner.cuda import rank
from pagefleet_engine.runner.cuda.parallel import Follower
from pagefleet_engine.runner.cuda.peers import Peers
from pagefleet_engine.runner.cuda.runner import CudaRunner
from tests.pagefleet_engine.runner.cuda.conftest import stand_in_for_a_gpu
from tests.pagefleet_engine.tiny_model import TinyShape

RANK_MODULE = "tests.pagefleet_engine.runner.cuda.parallel_rank"
SHAPE = TinyShape(layers=1, hidden_size=32, heads=4, kv_heads=2, head_size=16, intermediate_size=32)
BLOCKS = 64


def launch_of(uri: str, tensor_parallel_size: int, adapters: Sequence[Adapter] = ()) -> Launch:
    """A small launch without graphs, which only a GPU can capture."""
    return Launch(
        model=uri, dtype="float32", max_model_len=64, max_num_seqs=8, max_num_batched_tokens=32, num_kv_blocks=BLOCKS,
        cuda_graphs=False, tensor_parallel_size=tensor_parallel_size, adapters=tuple(adapters),
    )  # fmt: skip


def stand_in_for_a_rank(patch: pytest.MonkeyPatch) -> None:
    """What loading asks a GPU for, on the host; memory is never short."""
    stand_in_for_a_gpu(patch)
    stream = SimpleNamespace(synchronize=lambda: None)
    answers = {
        "current_device": 0, "current_stream": stream, "set_device": None, "synchronize": None, "empty_cache": None,
        "memory_allocated": 0, "max_memory_allocated": 0, "reset_peak_memory_stats": None, "memory_reserved": 0,
        "mem_get_info": (1 << 36, 1 << 36),
    }  # fmt: skip
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *arguments, answer=answer: answer)
    patch.setattr(gpu_loading, "current_device", lambda: torch.device("cpu"))


def runner_of(launch: Launch, peers: Peers) -> CudaRunner:
    """One rank's runner, loaded as on a GPU."""
    return loading.load_rank(launch, peers)


def _load(given: rank.Arguments) -> tuple[CudaRunner, Follower]:
    peers = Follower(given.shard, given.store, given.link, backend="gloo")
    return runner_of(given.launch, peers), peers


def main() -> None:
    """As `rank.main`, without a GPU."""
    stand_in_for_a_rank(pytest.MonkeyPatch())
    given = rank.arguments(sys.argv[1:])
    rank.belong_to_the_first_rank(given.rank)
    status = rank.serve(given, _load)
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
