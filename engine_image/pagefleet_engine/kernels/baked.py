"""Compiled kernels that came with the image: Triton's cache with a second folder, which is only read.

Triton finds it by `TRITON_CACHE_MANAGER=pagefleet_engine.kernels.baked:BakedKernels`, which the image sets. What the
folder does not hold is compiled, and kept where `TRITON_CACHE_DIR` says, as without it. Both have one layout: a folder
for each key, a hash of everything that a kernel depends on; so a wrong kernel cannot be found, only none.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import FileCacheManager

FOLDER_VARIABLE = "PAGEFLEET_KERNELS"
"""The environment variable that names the folder."""


class BakedKernels(FileCacheManager):  # type: ignore[misc]
    """The files of one key, of the writable cache before those of the image."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        """Triton makes one for each kernel; overrides and dumps are its user's, and of one folder."""
        super().__init__(key, override, dump)
        folder = None if override or dump else baked_folder()
        self._baked = None if folder is None else folder / key

    def get_file(self, filename: str) -> str | None:
        """The path of a file, or None."""
        own: str | None = super().get_file(filename)
        if own is not None or self._baked is None:
            return own
        path = self._baked / filename
        return str(path) if _is_file(path) else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The paths of all files of a kernel by their names, or None."""
        own: dict[str, str] | None = super().get_group(filename)
        if own or self._baked is None:
            return own
        try:
            listed = json.loads((self._baked / f"__grp__{filename}").read_text())["child_paths"]
            # the paths in there are those of the machine that compiled
            paths = {name: self._baked / name for name in listed}
        except (OSError, ValueError, KeyError, TypeError):
            return None  # as Triton takes a broken entry: the kernel is compiled
        return {name: str(path) for name, path in paths.items()} if all(map(_is_file, paths.values())) else None


def baked_folder() -> Path | None:
    """Where the image's kernels are, if it has any."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else None


def _is_file(path: Path) -> bool:
    """Whether there is one that may be looked for; a folder that nobody may read holds none."""
    try:
        return path.is_file()
    except OSError:
        return False


class KernelCount:
    """Where the kernels that a process took into use came from."""

    def __init__(self) -> None:
        self.baked = self.cached = self.compiled = 0
        self.compile_s = 0.0
        self._folder = baked_folder()

    def fields(self) -> dict[str, float]:
        """As fields of a log event: kernels of the image, of the writable cache, compiled now, and what that took."""
        found = {"baked": self.baked, "cached": self.cached, "compiled": self.compiled}
        return {**found, "compile_s": round(self.compile_s, 2)}

    def __call__(self, *, metadata_group: dict[str, str], times: Any, cache_hit: bool, **_: object) -> None:
        """Triton tells of a kernel (`knobs.CompilationListener`)."""
        if not cache_hit:
            self.compiled += 1
            self.compile_s += times.total / 1e6
        elif self._folder is not None and any(self._folder in Path(path).parents for path in metadata_group.values()):
            self.baked += 1
        else:
            self.cached += 1


@contextmanager
def counted() -> Iterator[KernelCount]:
    """Counts the kernels that are taken into use inside."""
    count, before = KernelCount(), knobs.compilation.listener
    knobs.compilation.listener = count
    try:
        yield count
    finally:
        knobs.compilation.listener = before
