"""Object stores: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage. A prefix is a folder."""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from typing import Any

from obstore import exceptions
from obstore.store import ObjectStore, from_url

from pagefleet_fetch.errors import Denied, FetchError, Missing, Unavailable
from pagefleet_fetch.listing import Listing, RemoteFile
from pagefleet_fetch.sources import Stream

_PIECE_BYTES = 16 << 20
_CHUNK_BYTES = 256 << 10
_KEYS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL where needed)",
    "gs": "GOOGLE_SERVICE_ACCOUNT_KEY",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT")
_ADDRESS = re.compile(r"https?://[^/\s]+")
_RETRY: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


class Objects:
    """One prefix of a bucket, or one object that a file's URI names. Credentials are read from the environment.

    only: names that are asked for one by one; None: all that is below the prefix, which may be millions.
    """

    def __init__(
        self,
        uri: str,
        scheme: str,
        file: str | None,
        environment: Mapping[str, str],
        *,
        only: Collection[str] | None = None,
    ) -> None:
        self._uri, self._scheme, self._file, self._only = uri, scheme, file, only
        plain = any(environment.get(name, "").startswith("http://") for name in _ENDPOINTS)
        options: Any = {"timeout": "120 seconds", "connect_timeout": "10 seconds", "allow_http": plain}
        folder = uri.rstrip("/") if file is None else uri.rpartition("/")[0]
        _check_endpoints(environment)
        try:
            self._store: ObjectStore = from_url(folder, client_options=options, retry_config=_RETRY)
        except (exceptions.BaseError, ValueError) as error:  # a key that is absent, or is none
            raise self._denied(_first_line(error)) from error

    def listing(self) -> Listing:
        """The objects below the prefix, with size and ETag."""
        with self._refusals():
            if self._file is not None:
                return Listing((_remote(self._store.head(self._file)),))
            files = [_remote(meta) for meta in self._found()]
        if not files:
            raise Missing(f"{self._uri} holds no object: check bucket and prefix")
        return Listing(tuple(files))

    def _found(self) -> Iterator[Any]:
        if self._only is None:
            yield from (meta for page in self._store.list() for meta in page if not meta["path"].endswith("/"))
            return
        for name in sorted(self._only):
            with contextlib.suppress(exceptions.NotFoundError, FileNotFoundError):
                yield self._store.head(name)

    @contextlib.contextmanager
    def read(self, file: RemoteFile, offset: int) -> Iterator[Stream]:
        """In pieces, each of them a request of its own, and each of the version that was listed."""
        yield Stream(offset, self._pieces(file, offset))

    def _pieces(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        size = file.size_bytes or 0
        while offset < size:
            end = min(offset + _PIECE_BYTES, size)
            with self._refusals():
                answer = self._store.get(file.path, options={"range": (offset, end), "if_match": file.etag})
                for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                    yield bytes(chunk)
                    offset += len(chunk)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError, PermissionError, OSError) as error:
            raise self._refusal(error) from error

    def _refusal(self, error: BaseException) -> FetchError:
        words = _first_line(error)
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)):
            return self._denied(words)
        if isinstance(error, (exceptions.NotFoundError, FileNotFoundError)):
            return Missing(f"{self._uri}: {words}: check bucket and prefix")
        if isinstance(error, exceptions.PreconditionError):
            return Unavailable(f"{self._uri} changed while it was being fetched; try again")
        # object_store has no type for a listing that is refused or of no bucket, nor for a credential that is nowhere
        if "404 Not Found" in str(error):
            return Missing(f"{self._uri}: {words}: check bucket and prefix")
        if any(mark in str(error) for mark in ("403 Forbidden", "401 Unauthorized", "AccessDenied", "169.254.169.254")):
            return self._denied(words)
        return Unavailable(f"{self._uri}: {words}")

    def _denied(self, words: str) -> Denied:
        way_out = f"put {_KEYS[self._scheme]} into the Secret that model.secretRef names"
        return Denied(f"{self._uri}: access denied ({words}); {way_out}")


def _check_endpoints(environment: Mapping[str, str]) -> None:
    """Raises Missing for one that is no address: the library ends the process over it."""
    for name in _ENDPOINTS:
        given = environment.get(name)
        if given and not _ADDRESS.match(given):
            raise Missing(f"{name} is {given!r}, which is no address; write http://HOST:PORT or https://HOST")


def _remote(meta: Any) -> RemoteFile:
    return RemoteFile(meta["path"], meta["size"], None, meta.get("e_tag"))


def _first_line(error: BaseException) -> str:
    """What happened, without the debug print of the library's structs that follows it."""
    return " ".join(str(error).partition("\n")[0].split())[:300]
