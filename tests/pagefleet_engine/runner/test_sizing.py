"""KV pool size and window from flags."""

import pytest

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import KvShape
from pagefleet_engine.models.config import ModelConfig, uniform_attention
from pagefleet_engine.models.rope import Rope
from pagefleet_engine.runner import memory
from pagefleet_engine.runner.errors import LaunchImpossible
from pagefleet_engine.runner.memory import Memory
from pagefleet_engine.runner.sizing import DEFAULT_CPU_CACHE_BYTES, check_room, kv_blocks, no_room, window

CONFIG = ModelConfig(
    layers=30, hidden_size=576, intermediate_size=1536, heads=9, kv_heads=3, head_size=64, vocab_size=49152,
    max_positions=8192, norm_eps=1e-5, ropes=(Rope(1e5, 64),), attention=uniform_attention(30), query_scale=64**-0.5,
    tied_head=True, bos_id=1, eos_ids=(2,),
)  # fmt: skip
SHAPE = KvShape(layers=30, kv_heads=3, head_size=64, element_bytes=4)
BLOCK_BYTES = SHAPE.bytes_per_block


@pytest.mark.parametrize(
    ("flags", "free_bytes", "blocks"),
    [
        ([], None, DEFAULT_CPU_CACHE_BYTES // BLOCK_BYTES),
        (["--num-kv-blocks", "7", "--kv-cache-bytes", "1Gi"], None, 7),
        (["--kv-cache-bytes", str(5 * BLOCK_BYTES + 1)], None, 5),
        (["--max-num-seqs", "2", "--max-model-len", "100"], None, 2 * 7),
        ([], 90 * BLOCK_BYTES, 90),
        (["--max-num-seqs", "1", "--max-model-len", "17"], 90 * BLOCK_BYTES, 2),
    ],
)
def test_kv_blocks(flags: list[str], free_bytes: int | None, blocks: int) -> None:
    launch = Launch.parse(["--model", "pkg://m", *flags])
    assert kv_blocks(launch, SHAPE, window(launch, CONFIG), free_bytes) == blocks


def test_a_cache_without_a_whole_block_is_refused_with_the_numbers() -> None:
    launch = Launch.parse(["--model", "pkg://m", "--kv-cache-bytes", str(BLOCK_BYTES - 1)])
    with pytest.raises(LaunchImpossible, match=rf"--kv-cache-bytes {BLOCK_BYTES - 1}.*{BLOCK_BYTES} bytes"):
        kv_blocks(launch, SHAPE, 8192, None)
    with pytest.raises(LaunchImpossible, match="a KV cache of 10 bytes"):
        kv_blocks(Launch(model="pkg://m"), SHAPE, 8192, 10)


@pytest.mark.parametrize(
    ("flag", "last_that_fits", "first_that_does_not"),
    [("--num-kv-blocks", 90, 91), ("--kv-cache-bytes", 91 * BLOCK_BYTES - 1, 91 * BLOCK_BYTES)],
)
def test_a_cache_larger_than_a_gpu_has_left_is_refused_with_flag_sizes_and_the_way_out(
    flag: str, last_that_fits: int, first_that_does_not: int
) -> None:
    left_bytes = 91 * BLOCK_BYTES - 1
    launch = Launch.parse(["--model", "pkg://m", flag, str(last_that_fits)])
    assert kv_blocks(launch, SHAPE, 8192, left_bytes) == 90
    launch = Launch.parse(["--model", "pkg://m", flag, str(first_that_does_not)])
    with pytest.raises(LaunchImpossible) as refused:
        kv_blocks(launch, SHAPE, 8192, left_bytes)
    for words in (
        f"{flag} {first_that_does_not} takes 0.06 GiB",
        "leave 0.06 GiB",
        "--gpu-memory-utilization 0.9",
        "--num-kv-blocks 90",
    ):
        assert words in str(refused.value)


def test_the_window_is_the_models_or_the_shorter_one_asked_for() -> None:
    assert window(Launch(model="m"), CONFIG) == 8192
    assert window(Launch(model="m", max_model_len=100), CONFIG) == 100
    with pytest.raises(LaunchImpossible, match="--max-model-len 8193 is more than the 8192"):
        window(Launch(model="m", max_model_len=8193), CONFIG)


@pytest.mark.parametrize("flag", ["--kv-cache-bytes", "--num-kv-blocks"])
def test_a_cache_larger_than_the_machine_is_refused_with_flag_sizes_and_the_way_out(flag: str) -> None:
    launch = Launch.parse(["--model", "pkg://m", flag, str(900 << 30)])
    with pytest.raises(LaunchImpossible) as refused:
        check_room(launch, 900 << 30, Memory(16 << 30, 9 << 30))
    for words in (f"{flag} {900 << 30}", "900.00 GiB", "16.00 GiB", "9.00 GiB are free", "give a smaller"):
        assert words in str(refused.value)
    check_room(launch, 16 << 30, Memory(16 << 30, 9 << 30))


def test_a_default_cache_is_refused_only_when_its_memory_cannot_be_had() -> None:
    launch = Launch(model="pkg://m")
    check_room(launch, 2, Memory(1, 1))
    assert "the default KV cache takes 1.00 GiB" in str(no_room(launch, 1 << 30, Memory(1, 1)))


def test_memory_is_what_the_kernel_says() -> None:
    text = "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\nHugePages_Total:       0\n\n"
    assert memory.parse(text) == Memory(2 << 20, 1 << 20)
    assert 0 < memory.read().free_bytes <= memory.read().total_bytes
