"""uvicorn as the two listeners run it: signals are the process's business, the end is bounded."""

import asyncio
import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from pagefleet_engine.api.connection import Connection
from pagefleet_engine.api.errors import ApiError

KEEP_ALIVE_S = 75
"""Longer than proxies keep idle connections (60 s), so that they close first and meet no reset."""
_CLOSE_S = 0.5

log = logging.getLogger(__name__)


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: ASGIApp, http: Any) -> _Uvicorn:
    return _Uvicorn(
        uvicorn.Config(
            app,
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
    )


class ClientListener:
    """Serves clients on the running event loop; `refused` hears of what is refused before it is a request."""

    def __init__(
        self, app: ASGIApp, bound: socket.socket, *, most_connections: int, refused: Callable[[ApiError], None]
    ) -> None:
        protocol = functools.partial(Connection, most_connections=most_connections, refused=refused)
        self._server = _server(app, protocol)
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))

    def undelivered(self, now_s: float) -> int:
        """Connections with bytes that their client has not taken; see `Connection.undelivered`."""
        connections = tuple(self._server.server_state.connections)
        return sum(_undelivered(each, now_s) for each in connections if isinstance(each, Connection))

    async def leave(self) -> None:
        """Close the socket and the connections; an answer that cannot be delivered does not hold the process."""
        self._server.should_exit = True
        _, late = await asyncio.wait([self._serving], timeout=_CLOSE_S)
        self._server.force_exit = True
        if late:
            await asyncio.wait(late, timeout=_CLOSE_S)


def _undelivered(connection: Connection, now_s: float) -> bool:
    """A fault in what is done for one client costs that client alone: who asks here serves all the others too."""
    try:
        return connection.undelivered(now_s)
    except Exception:
        log.exception("connection_failed")
    with contextlib.suppress(Exception):  # its transport may be what is broken
        connection.abort()
    return False


class ProbeListener:
    """Serves the pod's own endpoints in a thread with an event loop of its own.

    A thousand requests at once keep the clients' loop busy for longer than a probe waits; here a probe
    waits for one switch of threads. `EngineHost.ailment` notices when the clients' loop is stuck.
    """

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        self._server = _server(app, "httptools")
        self._bound = bound
        self._thread = threading.Thread(target=self._serve, name="probes", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=[self._bound]))

    def stop(self) -> None:
        """Begin to leave; `leave` waits for it."""
        self._server.should_exit = True

    def leave(self) -> None:
        """Close the socket and the connections."""
        self.stop()
        self._thread.join(_CLOSE_S)
        self._server.force_exit = True
