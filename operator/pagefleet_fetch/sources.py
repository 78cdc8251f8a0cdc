"""The one interface of everything that models come from."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pagefleet_fetch.listing import Listing, RemoteFile


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes of a file from `offset` on; a source that cannot begin where it was asked to begins at 0."""

    offset: int
    chunks: Iterator[bytes]


class Source(Protocol):
    """Where a model's files are. Every method raises Denied, Missing or Unavailable."""

    def listing(self) -> Listing:
        """What there is, without any of its bytes."""

    def read(self, file: RemoteFile, offset: int) -> AbstractContextManager[Stream]:
        """The bytes of one file from `offset` on, if it still is the file that was listed."""
