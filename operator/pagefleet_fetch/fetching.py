"""One fetch from beginning to end: lock, list, choose, check the room, download, verify, publish."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagefleet_api import model_uri
from pagefleet_fetch import credentials, listing
from pagefleet_fetch.collecting import Limit, make_room
from pagefleet_fetch.download import Downloads, Patience, on_disk
from pagefleet_fetch.errors import NoSpace, Occupied, Unavailable, Unusable
from pagefleet_fetch.folder import Folder, KeptFile, Record
from pagefleet_fetch.hub import Hub
from pagefleet_fetch.listing import SAFETENSORS_INDEX, Listing, RemoteFile
from pagefleet_fetch.local import Local
from pagefleet_fetch.objects import Objects
from pagefleet_fetch.pace import within
from pagefleet_fetch.pages import Pages, weight_files
from pagefleet_fetch.progress import Meter
from pagefleet_fetch.sources import Source
from pagefleet_fetch.telling import Board

log = logging.getLogger(__name__)

_LISTING_LIMIT_S = 600.0
"""A web server is asked for hundreds of files one by one."""
_SPARE_BYTES = 64 << 20
"""Left free on the disk, for the file system's own needs."""


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be fetched where.

    only_facts: only the files that say how large the model is, of a bucket or web server by their names.
    same_origin: of a web server nothing is read to which it redirects elsewhere.
    environment: credentials and endpoints, by the names that each source's own tools use.
    free_bytes: of the disk under a folder. board: where it is told how far the download is.
    """

    uri: str
    into: Path
    revision: str | None = None
    only_facts: bool = False
    same_origin: bool = False
    limit: Limit | None = None
    parallel: int = 8
    patience: Patience = field(default_factory=Patience)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    free_bytes: Callable[[Path], int] = _free_bytes
    board: Board | None = None


def fetch(request: Request) -> Record:
    """The model in `request.into`: at once when it is there, else downloaded. Raises FetchError."""
    source = source_of(request)
    try:
        return _fetched(request, source, Folder(request.into))
    except OSError as error:
        raise on_disk(request.into, error) from error


def _fetched(request: Request, source: Source, folder: Folder) -> Record:
    with folder.locked():
        present = folder.present()
        if present is not None:
            return same_model(present, request)
        began_s = time.monotonic()
        found = _listed(source, request.patience)
        wanted = _wanted(request, found)
        kept = folder.prepare(wanted)
        missing_bytes = folder.missing_bytes(wanted, kept)
        _check_room(request, folder, missing_bytes)
        log.info("fetch_started", extra={"uri": request.uri, "files": len(wanted), "bytes": missing_bytes})
        record = _download(request, source, folder, found, wanted, kept)
        took_s = round(time.monotonic() - began_s, 1)
        log.info("fetch_done", extra={"uri": request.uri, "bytes": record.size_bytes, "took_s": took_s})
        return record


def source_of(request: Request) -> Source:
    """The source that a URI names. Raises Unusable for one that is not downloaded, such as pvc:// or pkg://."""
    try:
        uri = model_uri.parse(request.uri)
    except ValueError as error:
        raise Unusable(str(error)) from error
    credentials.check(request.environment)
    only = listing.FACTS if request.only_facts else None
    if uri.scheme == "hf":
        return Hub(uri.rest, request.revision, request.environment)
    if uri.scheme in {"s3", "gs", "az"}:
        return Objects(request.uri, uri.scheme, uri.file, request.environment, only=only)
    if uri.scheme in {"http", "https"}:
        return Pages(request.uri, uri.file, request.environment, only=only, same_origin=request.same_origin)
    if uri.scheme == "file":
        return Local(Path(uri.rest))
    raise Unusable(f"{request.uri} is not downloaded: {uri.scheme}:// models are mounted or part of an image")


def _wanted(request: Request, found: Listing) -> tuple[RemoteFile, ...]:
    one_file = model_uri.parse(request.uri).file
    if request.only_facts and one_file:
        raise Unusable(f"{request.uri}: {one_file} is all that there is, and its size cannot be told without it")
    if one_file:
        return found.files
    choose = listing.facts if request.only_facts else listing.needed
    return choose(found.files, request.uri)


def same_model(present: Record, request: Request) -> Record:
    """The record of a model that is there, if it is the one that is asked for. Raises Occupied."""
    same = (present.uri, present.requested_revision, present.only_facts)
    if same != (request.uri, request.revision, request.only_facts):
        raise Occupied(
            f"{request.into} holds {present.uri} (revision {present.requested_revision or 'none given'}), not "
            f"{request.uri}: give another folder"
        )
    log.info("model_present", extra={"uri": request.uri, "revision": present.revision, "bytes": present.size_bytes})
    return present


def _listed(source: Source, patience: Patience) -> Listing:
    failures = 0
    while True:
        try:
            return _in_time(source)
        except Unavailable as error:
            failures += 1
            if failures >= patience.attempts:
                raise
            delay_s = patience.delay_s(failures, error)
            fields = {"error": str(error), "failures": failures, "again_in_s": round(delay_s, 1)}
            log.warning("listing_tried_again", extra=fields)
            time.sleep(delay_s)


def _in_time(source: Source) -> Listing:
    try:
        return within(_LISTING_LIMIT_S, source.listing)
    except TimeoutError as error:
        raise Unavailable(f"the source did not tell what it has: {error}") from error


def _check_room(request: Request, folder: Folder, missing_bytes: int) -> None:
    if request.limit is not None:
        make_room(request.into.parent, missing_bytes, request.limit, request.into.name)
    free = request.free_bytes(folder.staging)
    if missing_bytes and missing_bytes + _SPARE_BYTES > free:
        raise NoSpace(
            f"{request.uri} needs {missing_bytes} more bytes and {_SPARE_BYTES} to spare, but {free} are free under "
            f"{request.into.parent}: use a larger volume, or remove models"
        )


def _download(
    request: Request,
    source: Source,
    folder: Folder,
    found: Listing,
    wanted: tuple[RemoteFile, ...],
    kept: dict[str, KeptFile],
) -> Record:
    left = [file for file in wanted if file.path not in kept]
    sizes = [file.size_bytes for file in wanted]
    told_bytes = sum(size or 0 for size in sizes)
    meter = Meter(None if None in sizes else told_bytes, told_bytes - folder.missing_bytes(wanted, kept))
    if request.board is not None:
        request.board.show(meter.progress)
    arrived = Downloads(source, folder, request.patience, meter).run(left, request.parallel)
    files = tuple(sorted([*kept.values(), *arrived], key=lambda file: file.path))
    if not request.only_facts:
        _check_index(request.uri, folder, {file.path for file in files})
    record = Record(request.uri, request.revision, found.revision, request.only_facts, files)
    folder.finish(record)
    return record


def _check_index(uri: str, folder: Folder, paths: set[str]) -> None:
    """Every file of weights that the index names must be there."""
    if SAFETENSORS_INDEX not in paths:
        return
    named = weight_files(folder.staged(SAFETENSORS_INDEX).read_bytes(), f"{SAFETENSORS_INDEX} of {uri}")
    absent = [name for name in named if name not in paths]
    if absent:
        raise Unusable(f"{uri}: {SAFETENSORS_INDEX} names {', '.join(absent[:5])}, which the source does not have")
