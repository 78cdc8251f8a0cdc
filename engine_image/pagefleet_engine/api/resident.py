"""How much main memory a process holds, by the kernel's word (man 5 proc_pid_statm)."""

import os
from pathlib import Path


def resident_bytes(pid: int) -> int | None:
    """Bytes in memory now, those included that it shares with others; None when there is no such process any more."""
    try:
        return parse(Path(f"/proc/{pid}/statm").read_text(encoding="ascii"), os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return None


def parse(statm: str, page_bytes: int) -> int | None:
    """From the text of /proc/PID/statm, whose second number is pages; None for a process that has ended and is still
    listed, which holds nothing."""
    return int(statm.split()[1]) * page_bytes or None
