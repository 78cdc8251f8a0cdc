"""Copies a model out of the image in which it is started: `copying.py PATH INTO TOLD`, all of them absolute.

Run as a file, by an interpreter without a standard library: it imports what is built into Python or frozen in it, and
nothing else. What the engine finds below INTO lies there as it does in the image. Links are followed, as they could
lead out of what is copied. That it is done is said in the file TOLD, and there alone as the last thing.
"""
# ruff: noqa: PTH103, PTH112, PTH114, PTH116, PTH118, PTH120, PTH208
# (pathlib is of the library that is not there)

import _signal  # type: ignore[import-not-found]  # `signal` itself needs the library
import errno
import os
import sys

_CHUNK_BYTES = 1 << 26
_MOST_NAMES, _DEEPEST = 100_000, 100
"""More is no model: links to folders can lead to any number of them, with or without files."""
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_NAMES_TOLD = 10
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNREADABLE = (errno.EACCES, errno.EPERM)

Entry = tuple[str, str, int]
"""A file to copy: where it is, where it goes, its size in bytes."""
Place = tuple[int, int]
"""A folder, whatever leads there: its device and inode."""


class CannotCopy(Exception):
    """In words for whoever wrote the URI."""


def main(argv: list[str]) -> int:
    """The exit status; what a person must know is the last line on standard error."""
    source, into, told = argv
    try:
        entries = listed(source, into)
        check_room(entries, into)
        what = f"{len(entries)} files, {sum(size for *_, size in entries)} bytes"
        print(f"copying {what}", flush=True)
        for entry in entries:
            copy(*entry)
        _tell(f"copied {what}", told)
    except CannotCopy as error:
        # names in an image are anybody's, and this line becomes part of a status
        print("".join(c if c.isprintable() else "?" for c in str(error)), file=sys.stderr, flush=True)
        return 1
    return 0


def listed(source: str, into: str) -> list[Entry]:
    """All files of a folder, or a file. Of a whole image without what is mounted in it (/proc, /sys, volumes).

    Raises CannotCopy.
    """
    try:
        found = os.stat(source)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CannotCopy(_missing(source)) from error
    except OSError as error:
        raise CannotCopy(_unreadable(source, error)) from error
    target = os.path.join(into, source.lstrip("/")).rstrip("/")
    if _is_file(found):
        return [(source, target, found.st_size)]
    if not _is_folder(found):
        raise CannotCopy(f"{source} of the image is neither a file nor a folder")
    listing = _Listing(_place(found), (_of(into), _of(os.path.dirname(__file__))))
    listing.add(source, target, [_place(found)])
    return listing.entries


class _Listing:
    """What is found below a folder, `first`; `ours` is no part of it."""

    def __init__(self, first: Place, ours: tuple[Place | None, ...]) -> None:
        self.entries: list[Entry] = []
        self._first, self._ours = first, ours
        self._names_seen = 0

    def add(self, folder: str, target: str, within: list[Place]) -> None:
        """`within`: the folder and those above it, the outermost first: a link to one of them leads nowhere new.

        Raises CannotCopy.
        """
        for name in sorted(self._names(folder, len(within))):
            path, goes = os.path.join(folder, name), os.path.join(target, name)
            try:
                found = os.stat(path)
            except OSError as error:
                if error.errno in _NOWHERE:
                    continue  # a link to what is not there
                raise CannotCopy(_unreadable(path, error)) from error
            if _is_file(found):
                self.entries.append((path, goes, found.st_size))
            elif _is_folder(found) and self._is_new(path, found, within):
                self.add(path, goes, [*within, _place(found)])

    def _names(self, folder: str, depth: int) -> list[str]:
        """Of everything in a folder, looked at one by one: there may be more than fit into memory."""
        names: list[str] = []
        try:
            with os.scandir(folder) as found:
                for each in found:
                    names.append(each.name)
                    self._names_seen += 1
                    if self._names_seen > _MOST_NAMES or depth > _DEEPEST:
                        break
        except OSError as error:
            raise CannotCopy(_unreadable(folder, error)) from error
        if self._names_seen > _MOST_NAMES or depth > _DEEPEST:
            most = f"{_MOST_NAMES} files and folders, {_DEEPEST} deep"
            raise CannotCopy(f"{folder} of the image: a model has no more than {most}")
        return names

    def _is_new(self, path: str, found: os.stat_result, within: list[Place]) -> bool:
        return _place(found) not in (*within, *self._ours) and _is_inside(path, found, self._first)


def _is_inside(path: str, found: os.stat_result, first: Place) -> bool:
    """Whether a folder is on the image's own disk. Raises CannotCopy for one below a path that was named."""
    if found.st_dev == first[0]:
        return True
    if first == _of("/") or os.path.islink(path):
        return False
    raise CannotCopy(f"{path} is mounted, as a VOLUME of the image is: name this path, or build the image without it")


def check_room(entries: list[Entry], into: str) -> None:
    """Raises CannotCopy where the volume cannot hold them all; what an earlier try has left there makes room."""
    disk = os.statvfs(into)
    free = disk.f_bavail * disk.f_frsize + sum(_size(target) for _, target, _ in entries)
    needed = sum(size for *_, size in entries)
    if needed > free:
        raise CannotCopy(f"no room for the model: it has {needed} bytes, and the node's disk {free} free for it")


def copy(source: str, target: str, size: int) -> None:
    """One file, whole. Raises CannotCopy."""
    try:
        reads = os.open(source, os.O_RDONLY)
    except OSError as error:
        raise CannotCopy(_unreadable(source, error)) from error
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        writes = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            copied = 0
            while sent := os.sendfile(writes, reads, copied, _CHUNK_BYTES):
                copied += sent
        finally:
            os.close(writes)
    except OSError as error:
        words = "no room for it on the node's disk" if error.errno in _FULL else str(error)
        raise CannotCopy(f"cannot copy {source}: {words}") from error
    finally:
        os.close(reads)
    if copied != size:
        raise CannotCopy(f"cannot copy {source}: it ended after {copied} of {size} bytes")


def _tell(words: str, told: str) -> None:
    print(words, flush=True)
    try:
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(file, words.encode())
        finally:
            os.close(file)
    except OSError as error:
        raise CannotCopy(f"copied, but cannot say so in {told}: {error.strerror}") from error


def _is_folder(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o040000


def _is_file(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o100000


def _place(found: os.stat_result) -> Place:
    return found.st_dev, found.st_ino


def _of(path: str) -> Place | None:
    try:
        return _place(os.stat(path))
    except OSError:
        return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _missing(source: str) -> str:
    """What is there instead, at the last place on the way that exists."""
    above = os.path.dirname(source.rstrip("/"))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    try:
        names = sorted(os.listdir(above))
    except OSError:
        names = []
    there = ", ".join(names[:_NAMES_TOLD]) + (", ..." if len(names) > _NAMES_TOLD else "")
    return f"the image has no {source}; {above} has {there or 'nothing'}"


def _unreadable(path: str, error: OSError) -> str:
    if error.errno in _UNREADABLE:
        return f"user {os.getuid()} may not read {path} of the image: make what the model consists of readable for all"
    return f"cannot read {path} of the image: {error.strerror}"


if __name__ == "__main__":
    # the first process of a container ignores what it has no handler for: a pod would be held until its grace is over
    _signal.signal(_signal.SIGTERM, lambda *_: os._exit(143))
    sys.exit(main(sys.argv[1:]))
