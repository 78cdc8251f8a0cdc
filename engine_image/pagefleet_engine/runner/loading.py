"""From launch flags to a runner with weights and KV memory in place."""

import logging
import time

import torch

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import KvShape
from pagefleet_engine.core.run import LoadedRunner
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.opening import open_decoder
from pagefleet_engine.models.paged import PagedDecoder
from pagefleet_engine.models.random_weights import RandomWeights
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from pagefleet_engine.models.weights import Weights, open_weights
from pagefleet_engine.runner import memory, probe, sizing, threads
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.runner.torch_runner import TorchRunner

GPU_CACHE_SHARE = 0.9
"""Share of the GPU's free memory that the KV cache takes when its size is not given."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
log = logging.getLogger(__name__)


def load(launch: Launch) -> LoadedRunner:
    """Resolve, read and place the model.

    Raises ModelError (the model) or LaunchImpossible (flags and machine), whose messages are for the user.
    """
    started = time.perf_counter()
    torch.set_num_threads(threads.read_count())
    device = choose_device(launch.device)
    files = resolve(launch.model, weights=launch.load_format != "dummy")
    config = read_config(files)
    max_model_len = sizing.window(launch, config)
    dtype = choose_dtype(launch.dtype, device, config)
    if launch.load_format == "dummy":
        shapes = expected_shapes(config)
        weights: Weights = RandomWeights(shapes, device=torch.device(device), dtype=DTYPES[dtype])
    else:
        weights = open_weights(files, config)
    if config.foreign and (device != "cpu" or launch.load_format == "dummy"):
        raise LaunchImpossible(f"{launch.model}: a {config.architecture} model runs on a CPU, with its own weights")
    decoder = open_decoder(
        files, config, weights, dtype=DTYPES[dtype], device=torch.device(device), max_positions=max_model_len
    )
    config = decoder.config
    weights_read = time.perf_counter()
    shape = KvShape(config.layers, config.kv_heads, config.head_size, DTYPES[dtype].itemsize)
    num_blocks = sizing.kv_blocks(launch, shape, max_model_len, _free_bytes(device))
    runner = _with_cache(launch, decoder, num_blocks, num_blocks * shape.bytes_per_block)
    phase_s = {"weights": weights_read - started, "kv": time.perf_counter() - weights_read}
    memory_bytes = {"weights": decoder.weight_bytes, "kv": num_blocks * shape.bytes_per_block}
    log.info(
        "model_loaded",
        extra={
            "model": launch.model, "device": device, "dtype": dtype, "threads": torch.get_num_threads(),
            "num_blocks": num_blocks, "max_model_len": max_model_len, **memory_bytes,
        },
    )  # fmt: skip
    return LoadedRunner(runner, max_model_len, dtype, device, memory_bytes, phase_s, config.vocab_size)


def choose_device(asked: str) -> str:
    """ "cpu" or "cuda"; auto takes a GPU when torch sees one. Raises LaunchImpossible for an absent GPU."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise LaunchImpossible(
            "--device cuda: torch sees no GPU here; use --device cpu, or give the pod a GPU and its driver"
        )
    log.warning("cuda_untested", extra={"note": "plain torch code without GPU kernels; expect it to be slow"})
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
    if decoder.device.type == "cpu":
        room = memory.read()
    else:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        room = memory.Memory(total_bytes, free_bytes)
    sizing.check_room(launch, kv_bytes, room)
    try:
        return TorchRunner(decoder, num_blocks)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise sizing.no_room(launch, kv_bytes, room) from error


def _free_bytes(device: str) -> int | None:
    if device == "cpu":
        return None
    free_bytes, _ = torch.cuda.mem_get_info()
    return int(free_bytes * GPU_CACHE_SHARE)
