"""What the API server answers to the requests for watch streams, and how long ago."""

import asyncio
import itertools
import time
from collections.abc import Callable, Collection

import aiohttp

from pagefleet_operator.kinds import WATCHED


class Streams:
    """What the API server answered last to each watch stream; it ends each after a known time."""

    def __init__(self, namespaces: Collection[str | None]) -> None:
        self._paths = {ns: tuple(kind.path(ns) for kind in WATCHED.values()) for ns in namespaces}
        self._began_s: float | None = None
        self._answered_s: dict[str, float] = {}
        self._open: set[str] = set()
        self._refused: set[str] = set()
        self._news = asyncio.Event()
        self.trace = aiohttp.TraceConfig()
        self.trace.on_request_end.append(self._ended)

    def begin(self) -> None:
        """Streams are asked for from now on."""
        self._began_s = time.monotonic()

    def answered(self, path: str, *, status: int, watch: bool = True) -> None:
        """The server answered a request for a stream, or for the listing before one. A refusal counts as an answer."""
        paths = (known for known in itertools.chain(*self._paths.values()) if path.endswith(known))
        path = next(paths, path)  # the server may live below a path of its own
        refused = status == 403
        if refused or (watch and status == 200):
            self._answered_s[path] = time.monotonic()
            (self._refused if refused else self._open).add(path)
        if status == 200:
            self._refused.discard(path)
        self.stir()

    def is_open(self, namespace: str | None) -> bool:
        """All its streams have been open."""
        return self._open.issuperset(self._paths[namespace]) and not self.is_refused(namespace)

    def is_refused(self, namespace: str | None) -> bool:
        """The server does not let us watch there: the namespace or our permissions in it are gone."""
        return not self._refused.isdisjoint(self._paths[namespace])

    def age_s(self) -> float | None:
        """Since the oldest of all latest answers; None before `begin`."""
        if self._began_s is None:
            return None
        return time.monotonic() - min(
            self._answered_s.get(path, self._began_s) for path in itertools.chain(*self._paths.values())
        )

    def stir(self) -> None:
        """Let `until` look again."""
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, state: Callable[[], bool]) -> None:
        """Wait for a state that changes with the streams' answers or by `stir`."""
        while not state():
            await self._news.wait()

    async def _ended(self, _session: object, _context: object, answer: aiohttp.TraceRequestEndParams) -> None:
        watch = answer.url.query.get("watch") == "true"
        self.answered(answer.url.path, status=answer.response.status, watch=watch)
