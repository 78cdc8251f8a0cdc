"""How long a sequence may get and how many KV blocks there are. Pure."""

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import BLOCK_TOKENS, KvShape, blocks_for
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.runner.memory import Memory

DEFAULT_CPU_CACHE_BYTES = 512 << 20


def window(launch: Launch, config: ModelConfig) -> int:
    """Longest prompt plus answer in tokens. Raises LaunchImpossible when more is asked for than the model has."""
    if launch.max_model_len is None:
        return config.max_positions
    if launch.max_model_len > config.max_positions:
        raise LaunchImpossible(
            f"--max-model-len {launch.max_model_len} is more than the {config.max_positions} positions that "
            f"{launch.model} was made for; give at most that"
        )
    return launch.max_model_len


def check_room(launch: Launch, kv_bytes: int, memory: Memory) -> None:
    """Raise LaunchImpossible for a KV cache that was asked for by a flag and is larger than the whole memory.

    Linux gives out zeros that it does not have, and kills the process when they are written.
    """
    asked_by_flag = launch.num_kv_blocks is not None or launch.kv_cache_bytes is not None
    if asked_by_flag and kv_bytes > memory.total_bytes:
        raise no_room(launch, kv_bytes, memory)


def no_room(launch: Launch, kv_bytes: int, memory: Memory) -> LaunchImpossible:
    """The refusal of a KV cache of `kv_bytes` bytes that does not fit into `memory`."""
    if launch.num_kv_blocks is not None:
        asked = f"--num-kv-blocks {launch.num_kv_blocks}"
    elif launch.kv_cache_bytes is not None:
        asked = f"--kv-cache-bytes {launch.kv_cache_bytes}"
    else:
        asked = "the default KV cache"
    return LaunchImpossible(
        f"{asked} takes {_gib(kv_bytes)}, and of this machine's {_gib(memory.total_bytes)} {_gib(memory.free_bytes)} "
        "are free; give a smaller --kv-cache-bytes or --num-kv-blocks, or more memory"
    )


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


def kv_blocks(launch: Launch, shape: KvShape, max_model_len: int, free_bytes: int | None) -> int:
    """Blocks of the KV pool: --num-kv-blocks, else those in --kv-cache-bytes, else a default.

    The default is `free_bytes` on a GPU, 512 MiB on a CPU (None), and never more than all seats can fill.
    Raises LaunchImpossible when not one block fits, or when a flag asks for more than a GPU has left.
    """
    if launch.num_kv_blocks is not None:
        blocks, asked = launch.num_kv_blocks, f"--num-kv-blocks {launch.num_kv_blocks}"
    elif launch.kv_cache_bytes is not None:
        blocks, asked = shape.blocks_in(launch.kv_cache_bytes), f"--kv-cache-bytes {launch.kv_cache_bytes}"
    else:
        budget_bytes = DEFAULT_CPU_CACHE_BYTES if free_bytes is None else free_bytes
        usable = launch.max_num_seqs * blocks_for(max_model_len)
        blocks, asked = min(shape.blocks_in(budget_bytes), usable), f"a KV cache of {budget_bytes} bytes"
    if blocks < 1:
        raise LaunchImpossible(
            f"{asked} holds no block: one block of {BLOCK_TOKENS} tokens of {launch.model} takes "
            f"{shape.bytes_per_block} bytes; raise --kv-cache-bytes or set --num-kv-blocks"
        )
    if free_bytes is not None and blocks > (most := shape.blocks_in(free_bytes)):
        raise LaunchImpossible(
            f"{asked} takes {_gib(blocks * shape.bytes_per_block)}, and weights, steps and graphs leave "
            f"{_gib(free_bytes)} of --gpu-memory-utilization {launch.gpu_memory_utilization:g}; give at most "
            f"--num-kv-blocks {most}, leave both flags out, or raise the share"
        )
    return blocks
