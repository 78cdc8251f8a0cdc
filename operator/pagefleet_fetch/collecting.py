"""Keeps a folder of models within a limit: what was used longest ago goes first, what is in use never.

What downloads and removals that were given up have left counts as models do.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pagefleet_fetch.errors import NoSpace
from pagefleet_fetch.folder import RECORD, Record, held_if_free, left_of, set_aside

log = logging.getLogger(__name__)

IDLE_S = 600.0
"""A model that was asked for more recently counts as in use, whoever did so."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Of all models in one folder: `size_bytes`, and the names of those that are in use."""

    size_bytes: int
    in_use: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    folder: Path
    size_bytes: int
    used_s: float


def make_room(cache: Path, needed_bytes: int, limit: Limit, own: str, now_s: float | None = None) -> None:
    """Remove models until `needed_bytes` more fit. Raises NoSpace, and removes nothing, when they cannot.

    own: name of the model that the room is for.
    """
    models = _models(cache, own)
    spare = limit.size_bytes - needed_bytes - sum(model.size_bytes for model in models)
    going = []
    for model in sorted(models, key=lambda model: model.used_s):
        if spare >= 0:
            break
        if _is_idle(model, limit.in_use, time.time() if now_s is None else now_s):
            going.append(model)
            spare += model.size_bytes
    if spare < 0:
        raise NoSpace(
            f"{needed_bytes} bytes do not fit into the cache {cache}: its limit is {limit.size_bytes} bytes and models "
            f"in use have {sum(model.size_bytes for model in models if model not in going)}; raise that limit: "
            "model.cache.limit of a claim, the chart's nodeCache.limit of nodes"
        )
    kept = [model for model in going if not _removed(model)]
    if kept:
        make_room(cache, needed_bytes, limit, own, now_s)


def _removed(model: _Model) -> bool:
    """False when somebody has begun to use it since it was looked at: then it stays."""
    with held_if_free(model.folder.with_name(model.name)) as free:
        if not free or _seen(model.folder) != model:
            return False
        grave = model.folder if left_of(model.folder) else set_aside(model.folder)
    shutil.rmtree(grave, ignore_errors=True)
    log.info("model_removed", extra={"folder": str(model.folder), "bytes": model.size_bytes})
    return True


def _models(cache: Path, own: str) -> list[_Model]:
    found = [model for folder in cache.iterdir() if (model := _seen(folder)) is not None]
    return [model for model in found if model.name != own]


def _seen(folder: Path) -> _Model | None:
    """A model, or what is left of one; None for what is neither."""
    name = left_of(folder)
    if name is not None:
        return _Model(name, folder, *_weighed(folder))
    record = None if folder.name.startswith(".") else Record.read(folder)
    return None if record is None else _Model(folder.name, folder, record.size_bytes, (folder / RECORD).stat().st_mtime)


def _weighed(folder: Path) -> tuple[int, float]:
    """Bytes of all files in it, and when the latest of them was written."""
    size_bytes, written_s = 0, folder.stat().st_mtime
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # its owner goes on with it meanwhile
            found = path.lstat()
            size_bytes, written_s = size_bytes + found.st_size, max(written_s, found.st_mtime)
    return size_bytes, written_s


def _is_idle(model: _Model, in_use: Collection[str], now_s: float) -> bool:
    if model.name in in_use or now_s - model.used_s < IDLE_S:
        return False
    with held_if_free(model.folder.with_name(model.name)) as free:
        return free
