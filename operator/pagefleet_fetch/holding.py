"""Stays beside a model that others read: nobody takes it away, and it is missed when it is not whole any more."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from pagefleet_fetch.errors import Unusable
from pagefleet_fetch.fetching import Request, fetch, same_model
from pagefleet_fetch.folder import Folder

log = logging.getLogger(__name__)

LOOK_S = 30.0


def _pause() -> None:
    time.sleep(LOOK_S)


def fetch_and_hold(request: Request, ready: Path, pause: Callable[[], None] = _pause) -> None:
    """The model in `request.into`, fetched where it is not there, and held for as long as it is whole.

    ready: exists while the model is there. pause: the time between two looks at the model.
    Raises FetchError: as `fetch` does, and Unusable once files of the model are gone.
    """
    folder = Folder(request.into)
    ready.unlink(missing_ok=True)
    while not _held(folder, request, ready, pause):
        fetch(request)


def _held(folder: Folder, request: Request, ready: Path, pause: Callable[[], None]) -> bool:
    """False at once where there is no whole model."""
    with folder.held() as record:
        if record is None:
            return False
        same_model(record, request)
        log.info("model_held", extra={"uri": request.uri, "revision": record.revision, "bytes": record.size_bytes})
        ready.touch()
        while folder.whole() is not None:
            folder.used()
            pause()
    ready.unlink(missing_ok=True)
    raise Unusable(f"{request.into} has lost files of {request.uri}: it is fetched again")
