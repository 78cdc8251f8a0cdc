"""What a process holds, as the kernel tells it."""

import os
import subprocess
import sys

from pagefleet_engine.api.resident import parse, resident_bytes

MEBIBYTE = 1 << 20


def test_the_second_number_is_pages_in_memory() -> None:
    assert parse("5000 300 120 1 0 90 0\n", 4096) == 300 * 4096


def test_a_process_that_has_ended_holds_nothing_that_could_be_told() -> None:
    assert parse("0 0 0 0 0 0 0\n", 4096) is None
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert resident_bytes(child.pid) is None


def test_what_a_process_takes_is_seen() -> None:
    before = resident_bytes(os.getpid())
    taken = bytearray(os.urandom(MEBIBYTE)) * 64
    after = resident_bytes(os.getpid())
    assert before is not None and after is not None
    assert 48 * MEBIBYTE < after - before < 96 * MEBIBYTE
    assert len(taken) == 64 * MEBIBYTE
