"""How much main memory there is, by the kernel's word."""

from pathlib import Path
from typing import NamedTuple

MEMINFO = Path("/proc/meminfo")


class Memory(NamedTuple):
    """Bytes in all, and those that a process could still take."""

    total_bytes: int
    free_bytes: int


def parse(meminfo: str) -> Memory:
    """From the text of /proc/meminfo (man 5 proc_meminfo), whose unit is KiB. Raises KeyError without the lines."""
    kib = {words[0]: words[1] for line in meminfo.splitlines() if len(words := line.split()) > 1}
    return Memory(int(kib["MemTotal:"]) << 10, int(kib["MemAvailable:"]) << 10)


def read() -> Memory:
    """This machine's memory now; a container's own limit is not in it."""
    return parse(MEMINFO.read_text(encoding="ascii"))
