"""Takes the GPU's machine code out of torch's libraries: two thirds of them, and never loaded on a CPU."""

import ctypes
import os
import subprocess
from pathlib import Path

KEEP_SIZE_AND_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
SECTION = ".nv_fatbin"


def parse_sections(text: str) -> dict[str, tuple[int, int]]:
    """(offset, size) in bytes of each section, from the output of `readelf -S -W`."""
    sections = {}
    for line in text.splitlines():
        fields = line.replace("[ ", "[").split()
        if len(fields) > 5 and fields[0].startswith("[") and fields[1].startswith("."):
            sections[fields[1]] = (int(fields[4], 16), int(fields[5], 16))
    return sections


def remove(site_packages: Path) -> int:
    """Zeroes the code in place (the bytes become a hole in the file); how many bytes that freed.

    The files must be this tree's own: through a hard link into a package cache it would reach every other user.
    """
    freed_bytes = 0
    for path in sorted((site_packages / "torch" / "lib").glob("libtorch_*.so")):
        listing = subprocess.run(["readelf", "-S", "-W", str(path)], capture_output=True, text=True, check=True).stdout
        offset, size_bytes = parse_sections(listing).get(SECTION, (0, 0))
        if size_bytes:
            _punch(path, offset, size_bytes)
            freed_bytes += size_bytes
    return freed_bytes


def _punch(path: Path, offset: int, size_bytes: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDWR)
    try:
        arguments = (descriptor, KEEP_SIZE_AND_PUNCH, ctypes.c_long(offset), ctypes.c_long(size_bytes))
        if libc.fallocate(*arguments):
            raise OSError(ctypes.get_errno(), "cannot punch a hole", str(path))
    finally:
        os.close(descriptor)
