"""Watching with kopf: fills the cache, names the service that an event is about, and proves that it is in step.

kopf serves for indexes, events and login only. Handlers that would make it write on the user's object
(create, update, delete, timers, daemons) are never registered, so it writes nothing at all.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import aiohttp
import kopf

from pagefleet_api import labels
from pagefleet_operator.cache import ServiceKey, WatchCache
from pagefleet_operator.cluster import ApiError
from pagefleet_operator.kinds import WATCHED, Kind
from pagefleet_operator.settings import Settings, Timings

log = logging.getLogger(__name__)

_OURS = f"{labels.MANAGED_BY}={labels.FIELD_MANAGER}"
_POLL_S = 0.1
_WATCHER = "watcher for "
"""How kopf names the task of each stream."""

Login = Callable[[aiohttp.TraceConfig], Awaitable[kopf.AiohttpSession]]
"""Makes the session that kopf watches over."""


class Lister(Protocol):
    """Tells which objects exist; `Cluster` is one."""

    async def uids(self, kind: Kind, namespace: str | None) -> set[str]:
        """The uids of all our objects of a kind, as the server's storage has them now."""


class Streams:
    """How long ago each watch stream was opened with success; the server ends each after a known time."""

    def __init__(self) -> None:
        self._opened_s: dict[str, float] = {}
        self._news = asyncio.Event()
        self.trace = aiohttp.TraceConfig()
        self.trace.on_request_end.append(self._answered)

    def opened_now(self, *paths: str) -> None:
        """Streams of these URL paths are open since now."""
        self._opened_s.update(dict.fromkeys(paths, time.monotonic()))
        self._news.set()

    async def opened(self, count: int) -> None:
        """Wait until so many streams have been open."""
        while len(self._opened_s) < count:
            self._news.clear()
            await self._news.wait()

    def age_s(self) -> float | None:
        """Age of the stream that was opened longest ago; None before the first."""
        return time.monotonic() - min(self._opened_s.values()) if self._opened_s else None

    async def _answered(self, _session: object, _context: object, answer: aiohttp.TraceRequestEndParams) -> None:
        if answer.url.query.get("watch") == "true" and answer.response.status == 200:
            self.opened_now(answer.url.path)


class Watch:
    """Keeps `cache` in step with the API server and reports the service that each change is about."""

    def __init__(
        self, settings: Settings, cache: WatchCache, lister: Lister, changed: Callable[[ServiceKey], None]
    ) -> None:
        self._settings, self._cache, self._lister, self._changed = settings, cache, lister, changed
        self.streams = Streams()
        self.synced = asyncio.Event()
        self._relisted: set[str] = set()
        self._listed_again = asyncio.Event()
        self._namespaces: tuple[str | None, ...] = settings.namespaces or (None,)

    async def run(self, login: Login, stop: asyncio.Event, take_signals: Callable[[], None]) -> None:
        """Watch until `stop`. Raises when watching cannot go on, for example when the CRD is taken away.

        take_signals: puts the program's own signal handlers back, as kopf replaces them.
        """
        tasks = await kopf.spawn_tasks(
            registry=self.registry(login),
            settings=kopf_settings(self._settings.timings),
            identity=kopf_identity(self._settings),
            clusterwide=not self._settings.namespaces,
            namespaces=list(self._settings.namespaces),
            standalone=True,
            stop_flag=stop,
        )
        take_signals()
        await _until_one_ends(tasks)

    async def keep_in_step(self) -> None:
        """Wait for the first full cache, then look for objects that went unnoticed: after each listing that
        follows a lost stream, and every few minutes. A listing tells what is there, and nothing of what is not.
        """
        timings = self._settings.timings
        await self.streams.opened(len(WATCHED) * len(self._namespaces))
        for kind in WATCHED:
            await self._first_sync(kind)
        self.synced.set()
        log.info("caches_synced", extra={"services": len(self._cache.services())})
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._listed_again.wait(), timings.resync_s)
            await asyncio.sleep(timings.relist_settle_s)
            kinds = self._relisted or set(WATCHED)
            self._relisted = set()
            self._listed_again.clear()
            for kind in kinds:
                await self._drop_the_gone(kind)

    async def _first_sync(self, kind: str) -> None:
        """Wait until everything that exists is in the cache."""
        while True:
            live = await self._live(kind)
            if live is not None and live <= self._cache.uids(kind):
                return
            await asyncio.sleep(_POLL_S)

    async def _live(self, kind: str) -> set[str] | None:
        try:
            answers = [await self._lister.uids(WATCHED[kind], namespace) for namespace in self._namespaces]
        except ApiError as error:
            log.warning("listing_failed", extra={"kind": kind, "error": str(error)})
            return None
        return set().union(*answers)

    async def _drop_the_gone(self, kind: str) -> None:
        known = self._cache.uids(kind)  # before the listing: what comes later must not look gone
        live = await self._live(kind)
        for uid in known - live if live is not None else ():
            owner = self._cache.owner(kind, uid)
            self._cache.drop(kind, uid)
            log.info("unnoticed_deletion", extra={"kind": kind, "uid": uid})
            if owner is not None:
                self._changed(owner)

    def registry(self, login: Login) -> kopf.OperatorRegistry:
        """All that kopf does here: an index and an event handler for each kind, and the login."""
        registry = kopf.OperatorRegistry()

        async def logged_in(**_: object) -> kopf.AiohttpSession:
            return await login(self.streams.trace)

        kopf.on.login(id="login", registry=registry)(logged_in)
        for kind in WATCHED:
            group, _, version = f"/{WATCHED[kind].api_version}".rpartition("/")
            place = (group.removeprefix("/"), version, WATCHED[kind].plural)
            kopf.index(*place, id=f"index-{kind}", registry=registry)(self._indexer(kind))
            kopf.on.event(*place, id=f"event-{kind}", registry=registry)(self._listener(kind))
        return registry

    def _indexer(self, kind: str) -> Callable[..., Awaitable[None]]:
        async def index(body: Mapping[str, Any], **_: object) -> None:
            self._cache.put(kind, dict(body))

        return index

    def _listener(self, kind: str) -> Callable[..., Awaitable[None]]:
        async def event(event: Mapping[str, Any], **_: object) -> None:
            self._noticed(kind, event["type"], event["object"])

        return event

    def _noticed(self, kind: str, change: str | None, body: Mapping[str, Any]) -> None:
        uid = body["metadata"]["uid"]
        owner = self._cache.owner(kind, uid)
        if change == "DELETED":
            self._cache.drop(kind, uid, body)
        elif change is None and self.synced.is_set():
            self._relisted.add(kind)
            self._listed_again.set()
        if owner is not None:
            self._changed(owner)


async def _until_one_ends(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Like `kopf.run_tasks`, which in the end also waits for every task that is not kopf's, an open probe for one."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if any(task.done() and not task.cancelled() and task.exception() for task in tasks):
            # the one that failed leaves its siblings behind, and together with what they wait for they end badly
            await _cancelled([task for task in asyncio.all_tasks() if task.get_name().startswith(_WATCHER)])
        await _cancelled(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _cancelled(tasks: Collection["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class CappedBackoff:
    """Seconds between tries, without end: an API server that is away for minutes must not end the operator."""

    def __init__(self, cap_s: float) -> None:
        self._cap_s = cap_s

    def __iter__(self) -> Iterator[float]:
        for exponent in itertools.count():
            yield min(0.25 * 2.0 ** min(exponent, 30), self._cap_s)


def kopf_settings(timings: Timings) -> kopf.OperatorSettings:
    """kopf as a pure watcher.

    The server ends each stream after `watch_server_timeout_s`; a stream that says nothing for
    `watch_inactivity_s` is dead, whatever its socket believes. Scanning is off: it would need the right to list
    namespaces and CRDs, and it would leave a namespace that is being deleted while objects are still in it.
    """
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = timings.watch_server_timeout_s
    settings.watching.client_timeout = timings.watch_server_timeout_s + 15
    settings.watching.connect_timeout = timings.watch_connect_s
    settings.watching.inactivity_timeout = timings.watch_inactivity_s
    settings.networking.request_timeout = timings.read_timeout_s * 3
    settings.networking.connect_timeout = timings.watch_connect_s
    settings.networking.error_backoffs = CappedBackoff(timings.watch_retry_cap_s)
    settings.queueing.exit_timeout = 0.2
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = 5
    for kind in WATCHED:
        if kind != labels.KIND:
            settings.watching.label_selectors[WATCHED[kind].plural] = _OURS
    return settings


def kopf_identity(settings: Settings) -> Any:
    """Given, as kopf would otherwise ask for the user's name, which an arbitrary user id does not have."""
    return settings.identity
