"""How long a sequence may get and how many KV blocks there are. Pure."""

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import BLOCK_TOKENS, KvShape, blocks_for
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.runner.errors import LaunchImpossible

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


def kv_blocks(launch: Launch, shape: KvShape, max_model_len: int, free_bytes: int | None) -> int:
    """Blocks of the KV pool: --num-kv-blocks, else those in --kv-cache-bytes, else a default.

    The default is `free_bytes` on a GPU, 512 MiB on a CPU (None), and never more than all seats can fill.
    Raises LaunchImpossible when not one block fits.
    """
    if launch.num_kv_blocks is not None:
        return launch.num_kv_blocks
    if launch.kv_cache_bytes is not None:
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
    return blocks
