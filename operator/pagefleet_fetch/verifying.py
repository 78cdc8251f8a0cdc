"""Whether bytes are the published ones, and whether a file of weights is whole.

Source of the layout: https://github.com/huggingface/safetensors#format (eight bytes of length, a JSON header whose
`data_offsets` end where the file ends).
"""

import hashlib
import json
from pathlib import Path

from pagefleet_fetch.errors import Corrupt, Unusable
from pagefleet_fetch.listing import RemoteFile

_LENGTH_BYTES = 8
_HEADER_LIMIT_BYTES = 100_000_000
_CHUNK_BYTES = 1 << 20


class Digests:
    """SHA-256 of a file as it grows, and the digest that its source tells."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.size_bytes = 0
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(f"blob {file.size_bytes or 0}\0".encode(), usedforsecurity=False)

    def check_room(self, what: str, chunk: bytes) -> None:
        """Raises Corrupt for bytes beyond the published size: a server that never ends would fill the disk."""
        size, limit = self._file.size_bytes, self._file.limit_bytes
        if size is not None and self.size_bytes + len(chunk) > size:
            raise Corrupt(f"{what}: more bytes arrive than the {size} that are published")
        if limit is not None and self.size_bytes + len(chunk) > limit:
            raise Corrupt(f"{what}: more bytes arrive than the {limit} that such a file ever has")

    def add(self, chunk: bytes) -> None:
        """The next bytes."""
        self.size_bytes += len(chunk)
        self._sha256.update(chunk)
        if self._file.checksum is not None and self._file.checksum.kind == "git-sha1":
            self._git.update(chunk)

    def add_file(self, path: Path) -> None:
        """Bytes that came earlier."""
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                self.add(chunk)

    def verified(self, what: str) -> str:
        """The SHA-256 in hexadecimal. Raises Corrupt when size or checksum is not the published one."""
        size, checksum, sha256 = self._file.size_bytes, self._file.checksum, self._sha256.hexdigest()
        if size is not None and size != self.size_bytes:
            raise Corrupt(f"{what}: {self.size_bytes} bytes arrived, but {size} are published")
        if checksum is not None:
            found = sha256 if checksum.kind == "sha256" else self._git.hexdigest()
            if found != checksum.value:
                raise Corrupt(f"{what}: its {checksum.kind} is {found}, but {checksum.value} is published")
        return sha256


def check_safetensors(path: Path, what: str) -> None:
    """Raises Unusable for a file that is cut off or is no safetensors file: so it lies at the source."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _HEADER_LIMIT_BYTES):
            raise Unusable(f"{what} is no safetensors file: its header would be longer than the file ({size} bytes)")
        header = file.read(length)
    try:
        tensors = json.loads(header)
        ends = (int(entry["data_offsets"][1]) for name, entry in tensors.items() if name != "__metadata__")
        data = max(ends, default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise Unusable(f"{what} is no safetensors file: its header cannot be read: {error!r}") from error
    whole = _LENGTH_BYTES + length + data
    if whole != size:
        raise Unusable(f"{what} is broken at its source: it has {size} bytes and its header describes {whole}")
