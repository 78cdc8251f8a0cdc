"""How many threads compute."""

from pathlib import Path

import pytest

from pagefleet_engine.runner.threads import _cpu_max_texts, count_for, read_count, wait_briefly


@pytest.mark.parametrize(
    ("environment", "affinity", "cpu_max", "threads"),
    [
        ({}, 8, [], 8),
        ({}, 8, ["max 100000"], 8),
        ({}, 8, ["200000 100000", "max 100000"], 2),
        ({}, 8, ["350000 100000", "300000 100000"], 3),
        ({}, 8, ["150000 100000"], 1),
        ({}, 8, ["50000 100000"], 1),
        ({}, 2, ["1600000 100000"], 2),
        ({}, 4, ["nonsense", "", "1 0"], 4),
        ({"OMP_NUM_THREADS": "3"}, 8, ["100000 100000"], 3),
        ({"OMP_NUM_THREADS": "4,2"}, 8, [], 4),
        ({"OMP_NUM_THREADS": "0"}, 8, [], 8),
        ({"OMP_NUM_THREADS": "many"}, 8, [], 8),
    ],
)
def test_threads_follow_the_environment_then_affinity_and_quota(
    environment: dict[str, str], affinity: int, cpu_max: list[str], threads: int
) -> None:
    assert count_for(environment, affinity, cpu_max) == threads


def test_quotas_are_read_from_the_own_group_up_to_the_root(tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "pods" / "pod"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("100000 100000\n")
    (group.parent / "cpu.max").write_text("400000 100000\n")
    (tmp_path / "cpu.max").write_text("1 1\n")
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/x\n0::/pods/pod\n")
    assert _cpu_max_texts(tmp_path / "cgroup", own) == ["100000 100000\n", "400000 100000\n"]
    assert _cpu_max_texts(tmp_path / "cgroup", tmp_path / "absent") == []


def test_this_process_has_at_least_one_thread() -> None:
    assert read_count() >= 1


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, {"GOMP_SPINCOUNT": "1000"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ],
)
def test_threads_wait_briefly_unless_the_environment_says_how(given: dict[str, str], left: dict[str, str]) -> None:
    wait_briefly(given)
    assert given == left
