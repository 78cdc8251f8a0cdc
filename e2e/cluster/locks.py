"""One process at a time works in a folder."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Waits until nobody else holds `folder`. The folder itself is the lock: it leaves no file, and dies with us."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def built_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, as `build` fills one, unless it is there: all of it or nothing, whenever we are killed."""
    with locked(folder):
        if not is_built(folder):
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            partial.rename(folder)
    return folder


def is_built(folder: Path) -> bool:
    """Whether it was filled: who waits for its lock makes it, and leaves it empty when killed."""
    return folder.is_dir() and any(folder.iterdir())
