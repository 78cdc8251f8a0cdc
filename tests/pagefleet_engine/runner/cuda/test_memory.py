"""Where a GPU's bytes go: others' memory is not charged to this engine, and nothing is promised that is not free."""

import pytest

from pagefleet_engine.runner.cuda.memory import MARGIN_BYTES, GpuMemory, divide
from pagefleet_engine.runner.errors import LaunchImpossible

GIB = 1 << 30


def memory(total: int, free: int, own: int) -> GpuMemory:
    return GpuMemory(total * GIB, free * GIB, own * GIB)


def test_the_cache_gets_what_weights_a_step_and_graphs_leave_of_the_share() -> None:
    found = divide(memory(100, 80, 20), 0.9, weight_bytes=16 * GIB, peak_bytes=2 * GIB, graph_bytes=GIB)
    assert found.kv == (90 - 16 - 2 - 4 - 1) * GIB - MARGIN_BYTES
    assert found.reserved == (4 + 1) * GIB + MARGIN_BYTES
    assert sum(found) == 90 * GIB


def test_others_memory_does_not_count_against_the_share() -> None:
    alone = divide(memory(100, 80, 20), 0.5, weight_bytes=16 * GIB, peak_bytes=GIB, graph_bytes=0)
    beside = divide(memory(100, 60, 20), 0.5, weight_bytes=16 * GIB, peak_bytes=GIB, graph_bytes=0)
    assert alone.kv == beside.kv


def test_what_others_use_is_not_given_out() -> None:
    found = divide(memory(100, 10, 20), 0.9, weight_bytes=16 * GIB, peak_bytes=GIB, graph_bytes=0)
    assert found.kv == 8 * GIB - MARGIN_BYTES


def test_a_refusal_says_who_has_the_memory() -> None:
    with pytest.raises(
        LaunchImpossible, match=r"--gpu-memory-utilization 0\.2 .*weights take 16\.00 GiB.*use 20\.00 GiB"
    ):
        divide(memory(100, 60, 20), 0.2, weight_bytes=16 * GIB, peak_bytes=GIB, graph_bytes=0)
