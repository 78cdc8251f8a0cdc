"""Keeps a folder of models within a limit: what was used longest ago goes first, what is in use never."""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pagefleet_fetch.errors import NoSpace
from pagefleet_fetch.folder import RECORD, Record, is_being_fetched, remove

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
            f"in use have {sum(model.size_bytes for model in models if model not in going)}; raise model.cache.limit"
        )
    for model in going:
        log.info("model_removed", extra={"folder": str(model.folder), "bytes": model.size_bytes})
        remove(model.folder)


def _models(cache: Path, own: str) -> list[_Model]:
    found = []
    for folder in cache.iterdir():
        record = None if folder.name.startswith(".") or folder.name == own else Record.read(folder)
        if record is not None:
            found.append(_Model(folder, record.size_bytes, (folder / RECORD).stat().st_mtime))
    return found


def _is_idle(model: _Model, in_use: Collection[str], now_s: float) -> bool:
    recent = now_s - model.used_s < IDLE_S
    return model.folder.name not in in_use and not recent and not is_being_fetched(model.folder)
