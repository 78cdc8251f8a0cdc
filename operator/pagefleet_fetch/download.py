"""Brings files over: several at a time, each resumed where it broke off, until its bytes are the published ones."""

import errno
import logging
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_fetch.errors import Corrupt, FetchError, NoSpace, TooSlow, Unavailable, Unusable
from pagefleet_fetch.folder import Folder, KeptFile
from pagefleet_fetch.listing import RemoteFile
from pagefleet_fetch.pace import Floor, Pace
from pagefleet_fetch.progress import Meter, fields
from pagefleet_fetch.sources import Source
from pagefleet_fetch.verifying import Digests, check_safetensors

log = logging.getLogger(__name__)

_DELAY_CAP_S = 30.0
_PROGRESS_S = 10.0
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a failure that may pass is tried again: `attempts` in a row without a single new byte.

    The wait doubles from `first_delay_s` up to 30 s, or is what the server asks for. Bytes that come below `floor` are
    a failure too, and count as none.
    """

    attempts: int = 6
    first_delay_s: float = 1.0
    floor: Floor = field(default_factory=Floor)

    def delay_s(self, failures: int, error: FetchError) -> float:
        """Before the next try, after so many failures."""
        asked_s = error.after_s if isinstance(error, Unavailable) else None
        own_s = min(self.first_delay_s * 2.0 ** (failures - 1), _DELAY_CAP_S)
        return own_s * random.uniform(0.75, 1.25) if asked_s is None else min(asked_s, 10 * _DELAY_CAP_S)


class Interrupted(Exception):
    """Another file failed for good."""


class Downloads:
    """All files of one model that are not there yet."""

    def __init__(self, source: Source, folder: Folder, patience: Patience, meter: Meter) -> None:
        self._source, self._folder, self._patience, self._meter = source, folder, patience, meter
        self._stop, self._keeping, self._pace = threading.Event(), threading.Lock(), Pace(patience.floor)

    def run(self, files: Sequence[RemoteFile], parallel: int) -> list[KeptFile]:
        """Fetch and verify each of them. Raises the first FetchError; the others stop where they are."""
        largest_first = sorted(files, key=lambda file: -(file.size_bytes or 0))
        with ThreadPoolExecutor(max_workers=parallel, thread_name_prefix="fetch") as pool:
            running = [pool.submit(self._fetch, file) for file in largest_first]
            left = set(running)
            while left:
                _, left = wait(left, timeout=_PROGRESS_S)
                if left:
                    log.info("fetch_progress", extra=fields(self._meter.measure()))
        failures = [error for task in running if (error := task.exception()) is not None]
        for failure in sorted(failures, key=lambda error: isinstance(error, Interrupted)):
            raise failure
        return [task.result() for task in running]

    def _fetch(self, file: RemoteFile) -> KeptFile:
        try:
            return self._until_whole(file)
        except Exception:
            self._stop.set()
            raise

    def _until_whole(self, file: RemoteFile) -> KeptFile:
        part, failures, corrupt = self._folder.part(file), 0, False
        while True:
            if self._stop.is_set():
                raise Interrupted
            before = _size_bytes(part)
            try:
                return self._attempt(file)
            except (Unavailable, TooSlow, Corrupt) as error:
                failures = 1 if self._gained(error, _size_bytes(part) - before) else failures + 1
                if isinstance(error, Corrupt):
                    self._meter.add(-_size_bytes(part))
                    part.unlink(missing_ok=True)
                if failures >= self._patience.attempts or (corrupt and isinstance(error, Corrupt)):
                    raise
                corrupt = corrupt or isinstance(error, Corrupt)
                delay_s = self._patience.delay_s(failures, error)
                said = {"file": file.path, "error": str(error), "failures": failures, "again_in_s": round(delay_s, 1)}
                log.warning("fetch_tried_again", extra=said)
                self._stop.wait(delay_s)

    def _gained(self, error: FetchError, new_bytes: int) -> bool:
        """Whether an attempt brought the download on; one that ended too slow must have been fast before."""
        if isinstance(error, TooSlow):
            return new_bytes > 2 * self._patience.floor.window_bytes
        return isinstance(error, Unavailable) and new_bytes > 0

    def _attempt(self, file: RemoteFile) -> KeptFile:
        """Append what is missing to the part, then verify the whole."""
        part = self._folder.part(file)
        digests = Digests(file)
        if _size_bytes(part):
            digests.add_file(part)
        if file.size_bytes is None or digests.size_bytes < file.size_bytes:
            digests = self._append(file, digests)
        sha256 = digests.verified(file.path)
        if file.path.endswith(".safetensors"):
            self._check(file, part)
        with self._keeping:
            return self._folder.keep(file, sha256)

    def _check(self, file: RemoteFile, part: Path) -> None:
        """Without a checksum nobody can say whether the source broke it or the way here: the next fetch asks anew."""
        try:
            check_safetensors(part, file.path)
        except Unusable:
            if file.checksum is None:
                part.unlink(missing_ok=True)
            raise

    def _append(self, file: RemoteFile, digests: Digests) -> Digests:
        with self._source.read(file, digests.size_bytes) as stream:
            if stream.offset not in {0, digests.size_bytes}:
                raise Corrupt(f"{file.path}: asked for from byte {digests.size_bytes} on, it came from {stream.offset}")
            if stream.offset != digests.size_bytes:
                self._meter.add(-digests.size_bytes)
                digests = Digests(file)
            try:
                with self._folder.part(file).open("ab" if digests.size_bytes else "wb") as out:
                    for chunk in self._pace.follow(stream.chunks, file.path):
                        digests.check_room(file.path, chunk)
                        out.write(chunk)
                        digests.add(chunk)
                        self._meter.add(len(chunk))
                        if self._stop.is_set():
                            raise Interrupted
                    out.flush()
            except OSError as error:
                raise on_disk(self._folder.target, error) from error
        if file.size_bytes is not None and digests.size_bytes < file.size_bytes:
            raise Unavailable(f"{file.path} ended after {digests.size_bytes} of {file.size_bytes} bytes")
        return digests


def on_disk(target: Path, error: OSError) -> FetchError:
    """What an error of this machine's file system means for a fetch into `target`."""
    if error.errno in _FULL:
        return NoSpace(f"the disk under {target} is full: {error}; use a larger volume")
    return Unavailable(f"{target} cannot be written: {error}")


def _size_bytes(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
