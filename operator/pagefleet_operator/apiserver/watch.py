"""Watching with kopf: fills the cache, names the service that an event is about, and proves that it is in step.

kopf serves for events and login only. Handlers that would make it write on the user's object
(create, update, delete, timers, daemons) are never registered, so it writes nothing at all.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import aiohttp
import kopf

from pagefleet_api import labels
from pagefleet_operator.apiserver.cache import Keys, WatchCache
from pagefleet_operator.apiserver.cluster import ApiError
from pagefleet_operator.apiserver.streams import Streams
from pagefleet_operator.kinds import WATCHED, Kind
from pagefleet_operator.ownership import selector
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


class Watch:
    """Keeps `cache` in step with the API server and names the service that each change is about.

    Each namespace on its own: one that refuses us counts as empty, and the others go on.
    """

    def __init__(self, settings: Settings, cache: WatchCache, lister: Lister, queue: Keys) -> None:
        self._settings, self._cache, self._lister, self._queue = settings, cache, lister, queue
        self._namespaces: tuple[str | None, ...] = settings.namespaces or (None,)
        self.streams = Streams(self._namespaces)
        self.synced = asyncio.Event()
        self._known: set[str | None] = set()
        self._settled: set[str | None] = set()
        self._relisted: dict[str | None, set[str]] = {namespace: set() for namespace in self._namespaces}

    def knows(self, namespace: str) -> bool:
        """Everything that exists there is in the cache, and stays in step."""
        scope = namespace if namespace in self._relisted else None
        return scope in self._known and not self.streams.is_refused(scope)

    def knows_any(self) -> bool:
        """At least one namespace is known."""
        return bool(self._known)

    def refused(self) -> list[str]:
        """Namespaces that refuse us; the whole cluster is `*`."""
        return sorted(namespace or "*" for namespace in self._namespaces if self.streams.is_refused(namespace))

    async def run(self, login: Login, stop: asyncio.Event, take_signals: Callable[[], None]) -> None:
        """Watch until `stop`. Raises when watching cannot go on, for example when the CRD is taken away.

        take_signals: puts the program's own signal handlers back, as kopf replaces them.
        """
        self.streams.begin()
        tasks = await kopf.spawn_tasks(
            registry=self.registry(login),
            settings=kopf_settings(self._settings.timings, self._settings.shard),
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
        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces:
                group.create_task(self._follow(namespace))

    async def _follow(self, namespace: str | None) -> None:
        streams, fields = self.streams, {"namespace": namespace or "*"}
        while True:
            await streams.until(lambda: streams.is_open(namespace) or streams.is_refused(namespace))
            if streams.is_refused(namespace):
                log.warning("namespace_refused", extra=fields)
                self._settle(namespace)
                await streams.until(lambda: not streams.is_refused(namespace))
                log.info("namespace_open_again", extra=fields)
            elif await self._first_sync(namespace):
                await self._stay(namespace)

    async def _stay(self, namespace: str | None) -> None:
        """While a namespace is known."""
        self._known.add(namespace)
        self._settle(namespace)
        self._look_at_all(namespace)
        relisted, timings = self._relisted[namespace], self._settings.timings
        while not self.streams.is_refused(namespace):
            with contextlib.suppress(TimeoutError):
                news = self.streams.until(lambda: bool(relisted) or self.streams.is_refused(namespace))
                await asyncio.wait_for(news, timings.resync_s)
            await asyncio.sleep(timings.relist_settle_s)
            kinds = set(relisted or WATCHED)
            relisted.clear()
            for kind in kinds:
                await self._drop_the_gone(kind, namespace)
        self._known.discard(namespace)
        self._look_at_all(namespace)

    def _settle(self, namespace: str | None) -> None:
        """A namespace is known, or known to refuse us."""
        self._settled.add(namespace)
        if len(self._settled) == len(self._namespaces) and not self.synced.is_set():
            self.synced.set()
            log.info("caches_synced", extra={"services": len(self._cache.services())})

    def _look_at_all(self, namespace: str | None) -> None:
        for key in self._cache.services():
            if namespace in (None, key.namespace):
                self._queue.add(key)

    async def _first_sync(self, namespace: str | None) -> bool:
        """Wait until the cache has what exists and nothing else; False when the namespace refuses us before that."""
        for kind in WATCHED:
            while (live := await self._live(kind, namespace)) is None or not live <= self._cache.uids(kind, namespace):
                if self.streams.is_refused(namespace):
                    return False
                await asyncio.sleep(_POLL_S)
            if live != self._cache.uids(kind, namespace):
                await self._drop_the_gone(kind, namespace)
        return True

    async def _live(self, kind: str, namespace: str | None) -> set[str] | None:
        try:
            return await self._lister.uids(WATCHED[kind], namespace)
        except ApiError as error:
            log.warning("listing_failed", extra={"kind": kind, "namespace": namespace or "*", "error": str(error)})
            return None

    async def _drop_the_gone(self, kind: str, namespace: str | None) -> None:
        known = self._cache.uids(kind, namespace)  # before the listing: what comes later must not look gone
        live = await self._live(kind, namespace)
        for uid in known - live if live is not None else ():
            owners = self._cache.owners(kind, uid)
            self._cache.drop(kind, uid)
            log.info("unnoticed_deletion", extra={"kind": kind, "uid": uid})
            for owner in owners:
                self._queue.add(owner)

    def registry(self, login: Login) -> kopf.OperatorRegistry:
        """All that kopf does here: an event handler for each kind, and the login. Its indexes would hold every
        event back until every namespace has been listed; `keep_in_step` knows better.
        """
        registry = kopf.OperatorRegistry()

        async def logged_in(**_: object) -> kopf.AiohttpSession:
            return await login(self.streams.trace)

        kopf.on.login(id="login", registry=registry)(logged_in)
        for kind in WATCHED:
            group, _, version = f"/{WATCHED[kind].api_version}".rpartition("/")
            place = (group.removeprefix("/"), version, WATCHED[kind].plural)
            kopf.on.event(*place, id=f"event-{kind}", registry=registry)(self._listener(kind))
        return registry

    def _listener(self, kind: str) -> Callable[..., Awaitable[None]]:
        async def event(event: Mapping[str, Any], **_: object) -> None:
            self.noticed(kind, event["type"], event["object"])

        return event

    def noticed(self, kind: str, change: str | None, body: Mapping[str, Any]) -> None:
        """The server told of an object; `change` is None in a listing."""
        meta = body["metadata"]
        uid, before, owners = meta["uid"], self._cache.generation(meta["uid"]), self._cache.owners(kind, meta["uid"])
        if change == "DELETED":
            self._cache.drop(kind, uid, body)
        else:
            self._cache.put(kind, dict(body))
            owners = self._cache.owners(kind, uid)
        scope = meta["namespace"] if meta["namespace"] in self._relisted else None
        if change is None and scope in self._known:
            self._relisted[scope].add(kind)
            self.streams.stir()
        wanted_changed = kind == labels.KIND and (change == "DELETED" or before != meta.get("generation"))
        for owner in owners:
            (self._queue.add if wanted_changed else self._queue.nudge)(owner)


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


def kopf_settings(timings: Timings, shard: str | None = None) -> kopf.OperatorSettings:
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
        ours = selector(shard) if kind == labels.KIND else _OURS
        settings.watching.label_selectors[WATCHED[kind].plural] = ours
    return settings


def kopf_identity(settings: Settings) -> Any:
    """Given, as kopf would otherwise ask for the user's name, which an arbitrary user id does not have."""
    return settings.identity
