"""Stays beside a model that others read: nobody takes it away, and it is missed when it is not whole any more."""

import logging
import time
from collections.abc import Callable

from pagefleet_fetch.errors import Unusable
from pagefleet_fetch.fetching import Request, fetch, same_model
from pagefleet_fetch.folder import Folder
from pagefleet_fetch.telling import Board

log = logging.getLogger(__name__)

LOOK_S = 30.0


def _pause() -> None:
    time.sleep(LOOK_S)


def fetch_and_hold(request: Request, board: Board, pause: Callable[[], None] = _pause) -> None:
    """The model in `request.into`, fetched where it is not there, and held for as long as it is whole.

    board: tells whether it is held. pause: the time between two looks at the model.
    Raises FetchError: as `fetch` does, and Unusable once files of the model are gone.
    """
    folder = Folder(request.into)
    while not _held(folder, request, board, pause):
        fetch(request)


def _held(folder: Folder, request: Request, board: Board, pause: Callable[[], None]) -> bool:
    """False at once where there is no whole model."""
    with folder.held() as record:
        if record is None:
            return False
        same_model(record, request)
        log.info("model_held", extra={"uri": request.uri, "revision": record.revision, "bytes": record.size_bytes})
        board.held = True
        while folder.whole() is not None:
            folder.used()
            pause()
    board.held = False
    raise Unusable(f"{request.into} has lost files of {request.uri}: it is fetched again")
