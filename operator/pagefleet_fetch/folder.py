"""A model's folder while it is being filled, and its record once it is whole.

Beside the folder `NAME` lies `.NAME.fetching`, which holds

- `parts/IDENTITY`: bytes of one version of one file, as far as they came;
- `journal`: one line for each file whose bytes were verified, written before the file moves on;
- `model/PATH`: verified files. With the record in it, this becomes `NAME` by one rename.

So a process may be killed at any time: what is in a journal was verified and on the disk, all else is a part.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagefleet_fetch.errors import Occupied
from pagefleet_fetch.listing import RemoteFile

log = logging.getLogger(__name__)

RECORD = ".pagefleet-model.json"
_FETCHING = ".fetching"
_REMOVING = ".removing"


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file of a model that is there, with the digest of what was written."""

    path: str
    size_bytes: int
    sha256: str
    identity: str
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """What a model's folder holds and where it is from."""

    uri: str
    requested_revision: str | None
    revision: str | None
    only_facts: bool
    files: tuple[KeptFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """The record of a folder; None when it has none that can be read."""
        try:
            fields: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
            files = tuple(KeptFile(**file) for file in fields.pop("files"))
            return cls(**fields, files=files)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Into the folder, flushed."""
        _write_flushed(folder / RECORD, json.dumps(asdict(self), indent=1))

    def holds(self, folder: Path) -> bool:
        """Whether every file is there with its size."""
        return all(_size(folder / file.path) == file.size_bytes for file in self.files)


class Folder:
    """Fills `target`. One process at a time: see `locked`."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.staging = target.parent / f".{target.name}{_FETCHING}"
        self._parts, self._model, self._journal = (self.staging / name for name in ("parts", "model", "journal"))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the model's lock; whoever has it before us is waited for, and loses it when it dies."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(self.target).open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("fetch_waits", extra={"into": str(self.target), "for": "another fetch of this model"})
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[Record | None]:
        """Share the model's lock: nobody removes it meanwhile. Gives its record, None while it is not whole."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(self.target).open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield self.whole()

    def whole(self) -> Record | None:
        """The record of a model of which every file is there; None otherwise."""
        record = Record.read(self.target)
        return record if record is not None and record.holds(self.target) else None

    def used(self) -> None:
        """Note that the model is in use now: what was used longest ago is the first to go."""
        os.utime(self.target / RECORD)

    def present(self) -> Record | None:
        """The record of a whole model that is there; a folder that lost files is moved out of the way.

        Raises Occupied when the folder is not one of ours.
        """
        if not self.target.exists():
            return None
        record = Record.read(self.target)
        if record is None:
            if not self.target.is_dir() or any(self.target.iterdir()):
                raise Occupied(
                    f"{self.target} exists and was not fetched by Pagefleet: give another folder or empty it"
                )
            self.target.rmdir()
            return None
        if record.holds(self.target):
            self.used()
            return record
        log.warning("model_incomplete", extra={"folder": str(self.target)})
        remove(self.target)
        return None

    def prepare(self, wanted: tuple[RemoteFile, ...]) -> dict[str, KeptFile]:
        """Make the staging folder hold nothing but parts and verified files of `wanted`; gives the latter by path."""
        for folder in (self._parts, self._model):
            folder.mkdir(parents=True, exist_ok=True)
        journal, kept = self._read_journal(), {}
        for file in wanted:
            entry = journal.get(file.path)
            if entry is not None and entry.identity == file.identity and self._settled(entry):
                kept[file.path] = entry
        identities = {file.identity for file in wanted}
        for part in self._parts.iterdir():
            if part.name not in identities:
                part.unlink()
        for path in [path for path in self._model.rglob("*") if path.is_file()]:
            if str(path.relative_to(self._model)) not in kept:
                path.unlink()
        return kept

    def part(self, file: RemoteFile) -> Path:
        """Where the file's bytes are collected."""
        return self._parts / file.identity

    def missing_bytes(self, wanted: tuple[RemoteFile, ...], kept: dict[str, KeptFile]) -> int:
        """Bytes that are still to come, as far as the source told sizes."""
        left = [file for file in wanted if file.path not in kept]
        return sum(max((file.size_bytes or 0) - (_size(self.part(file)) or 0), 0) for file in left)

    def keep(self, file: RemoteFile, sha256: str) -> KeptFile:
        """The part is verified: note it, then put it to the model's files."""
        part = self.part(file)
        entry = KeptFile(file.path, part.stat().st_size, sha256, file.identity, file.etag)
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(asdict(entry)) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        self._move(part, entry)
        return entry

    def finish(self, record: Record) -> None:
        """The staged files become the model."""
        record.write(self._model)
        for folder in {path.parent for path in self._model.rglob("*")}:
            _flush_folder(folder)
        self._model.rename(self.target)
        _flush_folder(self.target.parent)
        shutil.rmtree(self.staging, ignore_errors=True)

    def staged(self, path: str) -> Path:
        """A verified file before the model is whole."""
        return self._model / path

    def _read_journal(self) -> dict[str, KeptFile]:
        entries = {}
        lines = self._journal.read_text(encoding="utf-8").splitlines() if self._journal.exists() else []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # a line that was cut off by the end of the process
                entry = KeptFile(**json.loads(line))
                entries[entry.path] = entry
        return entries

    def _settled(self, entry: KeptFile) -> bool:
        """The verified file is at its place, or is its part and moves there now."""
        part = self._parts / entry.identity
        if _size(part) == entry.size_bytes:
            self._move(part, entry)
        return _size(self._model / entry.path) == entry.size_bytes

    def _move(self, part: Path, entry: KeptFile) -> None:
        place = self._model / entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        part.rename(place)


def remove(folder: Path) -> None:
    """Take a folder away: at once for whoever looks, then its bytes."""
    shutil.rmtree(set_aside(folder))


def set_aside(folder: Path) -> Path:
    """Where a model's folder is now that nobody finds it any more; its bytes are still there."""
    grave = folder.parent / f".{folder.name}{_REMOVING}"
    shutil.rmtree(grave, ignore_errors=True)
    return folder.rename(grave)


def left_of(folder: Path) -> str | None:
    """The name of the model whose download or removal a folder is left of; None for any other folder."""
    for ending in (_FETCHING, _REMOVING):
        if folder.name.startswith(".") and folder.name.endswith(ending):
            return folder.name.removeprefix(".").removesuffix(ending)
    return None


@contextlib.contextmanager
def held_if_free(target: Path) -> Iterator[bool]:
    """Hold the model's lock unless a process has it; says whether it is ours now."""
    with _lock_file(target).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        else:
            free = True
        yield free


def _lock_file(target: Path) -> Path:
    return target.parent / f".{target.name}.lock"


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _write_flushed(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Some file systems of a network have no such call for folders; there the server orders what it does."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
