"""From launch flags to a runner with weights and KV memory in place."""

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import KvShape
from pagefleet_api.start_phase import StartPhase
from pagefleet_engine.core.run import LoadedRunner, batched_tokens
from pagefleet_engine.models.adapter_files import read_adapters
from pagefleet_engine.models.adapter_weights import AdapterWeights
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.opening import open_decoder
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.models.random_weights import RandomWeights
from pagefleet_engine.models.source import ModelFiles, resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.models.weights import Weights, open_weights
from pagefleet_engine.runner import foreign, memory, probe, sizing, threads
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.runner.torch_runner import TorchRunner
from pagefleet_engine.steps import Runner

if TYPE_CHECKING:
    from pagefleet_engine.runner.cuda.loading import LoadedCuda
    from pagefleet_engine.runner.cuda.peers import Peers
    from pagefleet_engine.runner.cuda.runner import CudaRunner

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
log = logging.getLogger(__name__)


def load(launch: Launch) -> LoadedRunner:
    """Resolve, read and place the model; with several GPUs, start the other ranks' processes.

    Raises ModelError (the model) or LaunchImpossible (flags and machine), whose messages are for the user.
    """
    started = time.perf_counter()
    device = choose_device(launch.device)
    opened = _open(launch, device)
    opened_s = time.perf_counter() - started
    place = _on_cpu if device == "cpu" else _on_gpu
    runner, memory_bytes, phase_s = place(launch, opened)
    phase_s[StartPhase.WEIGHTS] += opened_s
    log.info(
        "model_loaded",
        extra={
            "model": launch.model, "device": device, "dtype": opened.dtype, "threads": torch.get_num_threads(),
            "num_blocks": runner.num_blocks, "max_model_len": opened.max_model_len, **memory_bytes,
        },
    )  # fmt: skip
    vocab_size = opened.config.vocab_size
    return LoadedRunner(runner, opened.max_model_len, opened.dtype, device, memory_bytes, phase_s, vocab_size)


def load_rank(launch: Launch, peers: "Peers") -> "CudaRunner":
    """One rank's part of the model, on the current GPU. Raises as `load` does, or what ends the group."""
    return _place_on_gpu(launch, _open(launch, "cuda"), peers).runner


class _Opened(NamedTuple):
    files: ModelFiles
    config: ModelConfig
    weights: Weights
    dtype: str
    max_model_len: int
    adapters: tuple[AdapterWeights, ...]


def _open(launch: Launch, device: str) -> _Opened:
    torch.set_num_threads(threads.read_count())
    files = resolve(launch.model, weights=launch.load_format != "dummy")
    config = read_config(files)
    if config.foreign:
        foreign.check(launch, config, device)
    adapters = _open_adapters(launch, config)
    max_model_len = sizing.window(launch, config)
    dtype = choose_dtype(launch.dtype, device, config)
    if launch.load_format == "dummy":
        shapes = expected_shapes(config)
        weights: Weights = RandomWeights(shapes, device=torch.device(device), dtype=DTYPES[dtype])
    else:
        weights = open_weights(files, config)
    return _Opened(files, config, weights, dtype, max_model_len, adapters)


def _open_adapters(launch: Launch, config: ModelConfig) -> tuple[AdapterWeights, ...]:
    return tuple(AdapterWeights(folder, config) for folder in read_adapters(launch.adapters))


Placed = tuple[Runner, dict[str, int], dict[StartPhase, float]]
"""A runner, the bytes that it took by kind, the seconds that its making took by phase."""


def _on_cpu(launch: Launch, opened: _Opened) -> Placed:
    started = time.perf_counter()
    if launch.tensor_parallel_size > 1:
        raise LaunchImpossible(f"--tensor-parallel-size {launch.tensor_parallel_size} needs GPUs; on a CPU give 1")
    if launch.batch_invariant:
        raise LaunchImpossible("--batch-invariant needs a GPU: a CPU's sums change with the batch; leave the flag out")
    config, dtype = opened.config, DTYPES[opened.dtype]
    decoder = open_decoder(
        opened.files, config, opened.weights, dtype=dtype, device=torch.device("cpu"),
        max_positions=opened.max_model_len, adapters=opened.adapters,
    )  # fmt: skip
    config = decoder.config
    weights_read = time.perf_counter()
    shape = KvShape(config.layers, config.kv_heads, config.head_size, dtype.itemsize)
    num_blocks = sizing.kv_blocks(launch, shape, opened.max_model_len, None)
    runner = _with_cache(launch, decoder, num_blocks, num_blocks * shape.bytes_per_block)
    memory_bytes = {"weights": decoder.weight_bytes, "kv": num_blocks * shape.bytes_per_block}
    phase_s = {StartPhase.WEIGHTS: weights_read - started, StartPhase.KV: time.perf_counter() - weights_read}
    return runner, memory_bytes, phase_s


def _on_gpu(launch: Launch, opened: _Opened) -> Placed:
    if launch.tensor_parallel_size == 1:
        from pagefleet_engine.runner.cuda.peers import Alone

        loaded = _place_on_gpu(launch, opened, Alone())
    else:
        from pagefleet_engine.runner.cuda import parallel

        with parallel.leading(launch, opened.config) as peers:
            loaded = _place_on_gpu(launch, opened, peers)
    return loaded.runner, loaded.division._asdict(), loaded.phase_s


def _place_on_gpu(launch: Launch, opened: _Opened, peers: "Peers") -> "LoadedCuda":
    # these need triton, which a machine without a GPU may lack
    from pagefleet_engine.kernels.baked import counted
    from pagefleet_engine.runner.cuda import loading

    config, dtype, batch_tokens = opened.config, DTYPES[opened.dtype], batched_tokens(launch, "cuda")
    with counted() as kernels:
        if config.foreign:
            loaded = loading.load_foreign(launch, config, opened.files, dtype, opened.max_model_len, batch_tokens)
        else:
            loaded = loading.load(
                launch, config, opened.weights, dtype, opened.max_model_len, batch_tokens, peers, opened.adapters
            )
    log.info("kernels_loaded", extra=kernels.fields())
    return loaded


def choose_device(asked: str) -> str:
    """ "cpu" or "cuda"; auto takes a GPU when torch sees one. Raises LaunchImpossible for an absent GPU."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise LaunchImpossible(
            "--device cuda: torch sees no GPU here; use --device cpu, or give the pod a GPU and its driver"
        )
    return "cuda"


def choose_dtype(asked: str, device: str, config: ModelConfig) -> str:
    """The name of the number format; auto measures on a CPU and takes the files' own on a GPU."""
    if asked != "auto":
        return asked
    if device != "cpu":
        return config.weights_dtype if config.weights_dtype in DTYPES else "bfloat16"
    float32, bfloat16 = (probe.measure(config, dtype) for dtype in (torch.float32, torch.bfloat16))
    chosen = probe.faster_dtype(float32, bfloat16)
    log.info(
        "dtype_measured",
        extra={"dtype": chosen, "float32": str(float32), "bfloat16": str(bfloat16)},
    )
    return chosen


def _with_cache(launch: Launch, decoder: PagedDecoder, num_blocks: int, kv_bytes: int) -> TorchRunner:
    """The runner with its KV memory; raises LaunchImpossible when there is no room for it."""
    room = memory.read()
    sizing.check_room(launch, kv_bytes, room)
    try:
        return TorchRunner(decoder, num_blocks)
    except MemoryError as error:
        raise sizing.no_room(launch, kv_bytes, room) from error
