"""A folder or file of this machine, copied with the same checks as a download."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pagefleet_fetch.errors import Missing, Unavailable
from pagefleet_fetch.listing import Listing, RemoteFile
from pagefleet_fetch.sources import Stream

_CHUNK_BYTES = 1 << 20


class Local:
    """Follows links, as folders of a hub's cache consist of them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listing(self) -> Listing:
        """Its files with their sizes and times of change."""
        if self._path.is_file():
            return Listing((self._remote(self._path, self._path.name),))
        if not self._path.is_dir():
            raise Missing(f"file://{self._path}: there is no such file or folder")
        files = [path for path in self._path.rglob("*") if path.is_file()]
        return Listing(tuple(self._remote(path, str(path.relative_to(self._path))) for path in files))

    @contextlib.contextmanager
    def read(self, file: RemoteFile, offset: int) -> Iterator[Stream]:
        """Its bytes from there on."""
        path = self._path if self._path.is_file() else self._path / file.path
        try:
            with path.open("rb") as opened:
                opened.seek(offset)
                yield Stream(offset, iter(lambda: opened.read(_CHUNK_BYTES), b""))
        except OSError as error:
            raise Unavailable(f"file://{path}: {error}") from error

    @staticmethod
    def _remote(path: Path, name: str) -> RemoteFile:
        stat = path.stat()
        return RemoteFile(name, stat.st_size, None, str(stat.st_mtime_ns))
