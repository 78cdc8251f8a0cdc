"""From launch flags to a runner on a GPU: weights in parallel, KV memory from a measured step, the first graphs."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import torch

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import BLOCK_TOKENS, KvShape, blocks_for
from pagefleet_api.start_phase import StartPhase
from pagefleet_engine.models.adapter_weights import AdapterSource
from pagefleet_engine.models.adapters import Adapters, LowRank, join_adapters
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.layers import LayerWeights, read_layer, read_top
from pagefleet_engine.models.opening import open_foreign
from pagefleet_engine.models.source import ModelFiles
from pagefleet_engine.models.weights import Weights
from pagefleet_engine.runner import sizing
from pagefleet_engine.runner.cuda import trial
from pagefleet_engine.runner.cuda.decoder import CudaDecoder
from pagefleet_engine.runner.cuda.foreign import ForeignCudaDecoder
from pagefleet_engine.runner.cuda.graphs import batch_sizes
from pagefleet_engine.runner.cuda.memory import Division, GpuMemory, divide
from pagefleet_engine.runner.cuda.peers import Alone, Peers
from pagefleet_engine.runner.cuda.runner import CudaRunner
from pagefleet_engine.runner.cuda.segments import row_counts
from pagefleet_engine.runner.cuda.shards import ShardedAdapter, ShardedWeights, shard_config
from pagefleet_engine.runner.cuda.staging import StagedWeights

LOADING_THREADS = 4
CONTEXT_BYTES = 640 << 20
"""What the driver keeps for a process: context, libraries, kernels (measured on an H200, see bench/LOG.md)."""
GRAPH_BYTES = 4 << 20
"""What one captured size keeps outside the shared pool (likewise)."""
log = logging.getLogger(__name__)


class LoadedCuda(NamedTuple):
    """The runner, where its memory went, and how long each phase took."""

    runner: CudaRunner
    division: Division
    phase_s: dict[StartPhase, float]


def load(
    launch: Launch, config: ModelConfig, weights: Weights, dtype: torch.dtype, max_model_len: int, batch_tokens: int,
    peers: Peers, adapters: Sequence[AdapterSource] = (),
) -> LoadedCuda:  # fmt: skip
    """Place this rank's part of the model on the current GPU. Raises ModelError, LaunchImpossible or RunnerBroken."""
    started = time.perf_counter()
    device = current_device()
    cut = [ShardedAdapter(adapter, config, peers.shard) for adapter in adapters]
    weights, config = ShardedWeights(weights, config, peers.shard), shard_config(config, peers.shard)
    with torch.inference_mode():
        joined = join_adapters(cut, config, lambda low, product, index: placed(low, device, dtype), device)
        decoder = _decoder(launch, config, StagedWeights(weights, device, dtype), max_model_len, peers, joined)
    peers.join()
    return _ready(launch, decoder, max_model_len, batch_tokens, peers, started)


def load_foreign(
    launch: Launch, config: ModelConfig, files: ModelFiles, dtype: torch.dtype, max_model_len: int, batch_tokens: int
) -> LoadedCuda:
    """A model that transformers computes, on the current GPU; raises as `load` does."""
    started = time.perf_counter()
    with torch.inference_mode():
        model = open_foreign(files, config, dtype=dtype, device=current_device())
        decoder = ForeignCudaDecoder(model, max_decodes=launch.max_num_seqs)
    return _ready(replace(launch, cuda_graphs=False), decoder, max_model_len, batch_tokens, Alone(), started)


def _ready(
    launch: Launch, decoder: CudaDecoder, max_model_len: int, batch_tokens: int, peers: Peers, started: float
) -> LoadedCuda:
    """The decoder, whose placing began at `started`, with KV memory and the first graphs."""
    config = decoder.config
    weights_placed = time.perf_counter()
    options = _Options(launch.max_num_seqs, batch_tokens, blocks_for(max_model_len) + 1)
    peak_bytes = _measured_peak(decoder, options, max_model_len, peers)
    measured = time.perf_counter()
    shape = KvShape(config.layers, config.kv_heads, config.head_size, decoder.dtype.itemsize)
    captured = len(batch_sizes(launch.max_num_seqs)) + len(row_counts(batch_tokens))
    graph_bytes = GRAPH_BYTES * captured if launch.cuda_graphs else 0
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    memory = GpuMemory(total_bytes, free_bytes, torch.cuda.memory_reserved() + CONTEXT_BYTES)
    division = divide(
        memory, launch.gpu_memory_utilization,
        weight_bytes=decoder.weight_bytes, peak_bytes=peak_bytes, graph_bytes=graph_bytes,
    )  # fmt: skip
    num_blocks = sizing.kv_blocks(launch, shape, max_model_len, peers.smallest(division.kv))
    runner = CudaRunner(
        decoder, num_blocks, max_num_seqs=options.max_num_seqs, max_batch_tokens=options.batch_tokens,
        max_blocks=options.max_blocks, graphs=launch.cuda_graphs, peers=peers,
    )  # fmt: skip
    cache_made = time.perf_counter()
    runner.warm_up()
    phases = {
        StartPhase.WEIGHTS: weights_placed - started, StartPhase.PROFILE: measured - weights_placed,
        StartPhase.KV: cache_made - measured, StartPhase.GRAPHS: time.perf_counter() - cache_made,
    }  # fmt: skip
    return LoadedCuda(runner, division._replace(kv=num_blocks * shape.bytes_per_block), phases)


def current_device() -> torch.device:
    """This thread's GPU."""
    return torch.device("cuda", torch.cuda.current_device())


class _Options(NamedTuple):
    max_num_seqs: int
    batch_tokens: int
    max_blocks: int


def placed(low: LowRank, device: torch.device, dtype: torch.dtype) -> LowRank:
    """What adapters add to one product, on the GPU."""
    return LowRank(low.down.to(device, dtype), low.up.to(device, dtype))


def _decoder(
    launch: Launch, config: ModelConfig, weights: Weights, max_model_len: int, peers: Peers, adapters: Adapters | None
) -> CudaDecoder:
    def layer(index: int) -> LayerWeights:
        with torch.inference_mode():
            read = read_layer(weights, config, index)
            torch.cuda.current_stream().synchronize()
            return read

    device = torch.cuda.current_device()
    # a thread's GPU is the first one until it is told otherwise
    with ThreadPoolExecutor(LOADING_THREADS, initializer=torch.cuda.set_device, initargs=(device,)) as pool:
        layers = list(pool.map(layer, range(config.layers)))
    return CudaDecoder(
        config, layers, read_top(weights, config), max_positions=max_model_len, max_decodes=launch.max_num_seqs,
        batch_invariant=launch.batch_invariant, reduce=peers.reduce if peers.shard.world > 1 else None,
        adapters=adapters,
    )  # fmt: skip


def _measured_peak(decoder: CudaDecoder, options: _Options, max_model_len: int, peers: Peers) -> int:
    """Bytes that the largest step takes beside weights, and everything that lives as long as the runner.

    The step is computed without a KV cache: all of it goes to the one block that padding uses.
    """
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    runner = CudaRunner(
        decoder, 0, max_num_seqs=options.max_num_seqs, max_batch_tokens=options.batch_tokens,
        max_blocks=options.max_blocks, graphs=False, peers=peers,
    )  # fmt: skip
    for plan in trial.largest_steps(options.batch_tokens, options.max_num_seqs, max_model_len):
        peers.compute(runner, plan)
    torch.cuda.synchronize()
    peak: int = torch.cuda.max_memory_allocated() - before
    decoder.allocate(0)
    del runner
    torch.cuda.empty_cache()
    log.info("peak_measured", extra={"bytes": peak, "block_tokens": BLOCK_TOKENS})
    return peak
