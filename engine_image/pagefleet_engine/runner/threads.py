"""How many CPU threads this process may use: its affinity, cut to its control group's quota. And how they wait."""

import os
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
_WAIT_POLICY, _SPIN_COUNT = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
_BRIEF_SPINS = "1000"
"""What libgomp itself takes where it has more threads than CPUs: microseconds. Else it is 300,000: milliseconds."""


def count_for(environment: Mapping[str, str], affinity_cpus: int, cpu_max: Iterable[str]) -> int:
    """Threads for compute: OMP_NUM_THREADS when set, else whole CPUs that affinity and quotas leave.

    `cpu_max` are the texts of the cgroup v2 files `cpu.max` from the own group to the root
    ("150000 100000" is one and a half CPUs, "max 100000" no limit). A thread more than the quota would
    be stopped by the kernel in the middle of a step, and all others wait for it; hence rounded down.
    """
    fixed = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if fixed.isdigit() and int(fixed) > 0:
        return int(fixed)
    quotas = [quota for quota in map(_quota_cpus, cpu_max) if quota is not None]
    return max(1, min([affinity_cpus, *map(int, quotas)]))


def read_count() -> int:
    """`count_for` this process."""
    return count_for(os.environ, len(os.sched_getaffinity(0)), _cpu_max_texts(CGROUP_ROOT, OWN_CGROUP))


def wait_briefly(environment: MutableMapping[str, str]) -> None:
    """Let a thread that waits for another one sleep soon, unless the environment says how threads wait.

    Turning in a loop, it takes the CPU from the thread that it waits for as soon as other work wants CPUs too: a step
    of two threads then lasts ten times as long. libgomp reads this when torch is imported.
    """
    if _WAIT_POLICY not in environment:
        environment.setdefault(_SPIN_COUNT, _BRIEF_SPINS)


def _quota_cpus(text: str) -> float | None:
    words = text.split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _cpu_max_texts(root: Path, own: Path) -> list[str]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    relative = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), "")
    folder = root / relative
    texts = []
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            break
        file = place / "cpu.max"
        if file.is_file():
            texts.append(file.read_text())
    return texts
