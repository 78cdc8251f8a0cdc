"""A rank on the host: Triton's interpreter and gloo in place of a GPU and NCCL; the process that the tests start."""

import logging
import os
import sys

import pytest
import torch

from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.layers import read_layer, read_top
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.weights import open_weights
from pagefleet_engine.runner.cuda import rank
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.parallel import Follower
from pagefleet_engine.runner.cuda.peers import Peers
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.runner.cuda.shards import ShardedWeights, shard_config
from tests.pagefleet_engine.runner.cuda.conftest import stand_in_for_a_gpu
from tests.pagefleet_engine.tiny_model import TinyShape

RANK_MODULE = "tests.pagefleet_engine.runner.cuda.parallel_rank"
SHAPE = TinyShape(layers=1, hidden_size=32, heads=4, kv_heads=2, head_size=16, intermediate_size=32)
BLOCKS, WINDOW, SEATS = 64, 128, 8


def runner_of(uri: str, peers: Peers) -> CudaRunner:
    """One rank's runner on the host."""
    files = resolve(uri)
    whole = read_config(files)
    config = shard_config(whole, peers.shard)
    weights = ShardedWeights(open_weights(files, whole), whole, peers.shard)
    layers = [read_layer(weights, config, index) for index in range(config.layers)]
    decoder = CudaDecoder(
        config, layers, read_top(weights, config), max_positions=WINDOW, max_decodes=SEATS,
        reduce=peers.reduce if peers.shard.world > 1 else None,
    )  # fmt: skip
    peers.join()
    return CudaRunner(
        decoder, BLOCKS, max_num_seqs=SEATS, max_batch_tokens=WINDOW, max_blocks=WINDOW // 16 + 1, graphs=False,
        peers=peers,
    )  # fmt: skip


def _load(given: rank.Arguments) -> tuple[CudaRunner, Follower]:
    peers = Follower(given.shard, given.store, given.link, backend="gloo")
    return runner_of(given.launch.model, peers), peers


def main() -> None:
    """As `rank.main`, without a GPU."""
    stand_in_for_a_gpu(pytest.MonkeyPatch())
    torch.set_num_threads(1)
    given = rank.arguments(sys.argv[1:])
    rank.belong_to_the_first_rank(given.rank)
    status = rank.serve(given, _load)
    logging.shutdown()
    os._exit(status)


if __name__ == "__main__":
    main()
