"""The running operator: everything wired together, started in order and stopped in the reverse one."""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import aiohttp
import kopf

from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.claims import Claims
from pagefleet_operator.apiserver.group_watch import GroupWatch
from pagefleet_operator.apiserver.lease import Leadership
from pagefleet_operator.apiserver.watch import Watch
from pagefleet_operator.engines.scraper import Scraper, admin_address
from pagefleet_operator.facts.observed import Pod
from pagefleet_operator.metrics import Metrics, Operator
from pagefleet_operator.reconciling.reconcile import Reconciler
from pagefleet_operator.server import Check, Views, serve
from pagefleet_operator.settings import Settings, own_version
from pagefleet_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

_WORKERS = 8
_CRD_POLL_S = 2.0
_BEAT_S = 1.0
_DEEPEST = 30_000
"""Calls within each other, of which kopf makes two a level. The API server takes objects of 10,000 levels, and what is
not read cannot be refused; without this one such object would end the watching for all. So many levels of JSON take
less than 4 MB of the stack, of 8. Source: maxNestingDepth in sigs.k8s.io/json."""


async def run(settings: Settings, *, address: Callable[[Pod], str | None] = admin_address) -> None:
    """Operate until SIGTERM or SIGINT. Raises when it cannot go on; the caller's process should then end.

    address: base URL of a pod's admin port.
    """
    sys.setrecursionlimit(max(_DEEPEST, sys.getrecursionlimit()))
    stop = asyncio.Event()
    _take_signals(stop)
    client = await api.connect()
    try:
        await Program(settings, client, stop, address).run()
    finally:
        await client.close()


def _take_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


class Program:
    """One operator process."""

    def __init__(
        self, settings: Settings, client: api.Connection, stop: asyncio.Event, address: Callable[[Pod], str | None]
    ) -> None:
        timings = settings.timings
        self._settings, self._client, self._stop = settings, client, stop
        self._metrics = Metrics()
        self._queue: WorkQueue[ServiceKey] = WorkQueue(first_s=timings.backoff_first_s, cap_s=timings.backoff_cap_s)
        self._cache = WatchCache()
        cluster = api.Cluster(client, settings, self._metrics, may_write=self._holds)
        self._cluster = cluster
        self._leadership = Leadership(settings, cluster, self._leads, errors=(api.ApiError,), fit=self._fit)
        self._scraper = Scraper(timings, self._metrics, self._queue.nudge, address)
        self._reconciler = Reconciler(
            settings, self._cache, cluster, self._scraper, self._metrics, self._queue.add_after
        )
        self._claims = Claims(settings, self._cache, cluster, self._queue.add_after)
        self._watch = Watch(settings, self._cache, cluster, self._queue)
        self._groups = GroupWatch(
            settings.namespaces or (None,),
            self._cache,
            cluster,
            self._queue,
            self._holds,
            interval_s=timings.groups_look_s,
        )
        self._beat_s = time.monotonic()
        self._notes: list[Callable[[], Check]] = []

    async def run(self) -> None:
        """Serve the probes, wait for the CRD, watch, and work while this replica leads."""
        log.info("operator_started", extra={"version": own_version(), "identity": self._settings.identity})
        self._leads(False)
        runner = await serve(self._views(), self._settings.listen)
        try:
            if await self._crd_is_served():
                async with self._tasks():
                    await self._watch.run(self._login, self._stop, lambda: _take_signals(self._stop))
        finally:
            await self._scraper.close()
            await self._leadership.release()
            await runner.cleanup()
            log.info("operator_stopped")

    @contextlib.asynccontextmanager
    async def _tasks(self) -> AsyncIterator[None]:
        """Everything beside watching; one that fails ends the program, as a half-dead operator helps nobody."""
        jobs = [self._beat(), self._watch.keep_in_step(), self._groups.run(), self._compete(), self._resync()]
        jobs += [self._work() for _ in range(_WORKERS)]
        jobs += self._offers()
        tasks = [asyncio.create_task(job) for job in jobs]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _offers(self) -> list[Coroutine[Any, Any, None]]:
        """Servers for autoscalers of others; what is not asked for is not imported either."""
        made: list[Coroutine[Any, Any, None]] = []
        settings, cache, scraper = self._settings, self._cache, self._scraper
        if settings.custom_metrics is not None:
            from pagefleet_operator.custom_metrics import serving

            server = serving.CustomMetrics(
                settings, settings.custom_metrics, serving.Sources(self._cluster, cache, scraper, self._holds)
            )
            self._notes.append(lambda: Check("custom_metrics", True, server.problem or "registered"))
            self._reconciler.unserved = lambda: server.refusal
            made.append(self._once_synced(server.run))
        if settings.keda_scaler is not None:
            from pagefleet_operator.keda.serving import ExternalScaler, Sources

            sources = Sources(cache, scraper, self._holds)
            scaler = ExternalScaler(settings.keda_scaler, sources, settings.keda_tls_folder)
            made.append(self._once_synced(scaler.run))
        if settings.node_cache is not None:
            made.append(self._once_synced(lambda: self._reconciler.node_cache.run(self._holds)))
        return made

    async def _once_synced(self, run: Callable[[], Awaitable[None]]) -> None:
        await self._watch.synced.wait()
        await run()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            log.error("task_ended", extra={"error": str(task.exception())})
            self._stop.set()

    async def _crd_is_served(self) -> bool:
        """Wait until the API server knows InferenceServices; False when told to stop before that."""
        told = False
        while not self._stop.is_set():
            try:
                if await self._cluster.serves_our_kind():
                    return True
                if not told:
                    log.warning("crd_missing", extra={"hint": "install crds/inferenceservices.yaml"})
                told = True
            except api.ApiError as error:
                log.warning("api_server_unreachable", extra={"error": str(error)})
            self._beat_s = time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _CRD_POLL_S)
        return False

    async def _login(self, trace: aiohttp.TraceConfig) -> kopf.AiohttpSession:
        session = await api.watch_session(self._client, [trace])
        return kopf.AiohttpSession(server=self._client.configuration.host, aiohttp_session=session)

    async def _work(self) -> None:
        """Passes, one after another. Without the lead, or without access to its namespace, a key is let go: each
        of them begins with all its keys."""
        await self._watch.synced.wait()
        while True:
            key = await self._queue.get()
            try:
                if self._holds() and self._watch.knows(key.namespace):
                    if self._groups.knows(key):  # which brings the key back else
                        await self._pass(key)
                    else:
                        self._queue.succeeded(key)
                else:
                    self._reconciler.forget(key)
                    self._claims.forget(key)
                    self._queue.succeeded(key)
            finally:
                self._queue.done(key)

    async def _pass(self, key: ServiceKey) -> None:
        began_s, result = time.monotonic(), "ok"
        try:
            if await self._claims.may_act(key):
                await self._reconciler.converge(key)
            else:
                self._reconciler.forget(key)
            self._queue.succeeded(key)
        except api.Terminating as error:
            result = "terminating"
            self._queue.succeeded(key)
            log.info("namespace_terminating", extra={"service": str(key), "error": str(error)})
        except api.NotLeading:
            result = "not_leading"
        except api.ApiError as error:
            result = type(error).__name__.lower()
            delay_s = self._queue.failed(key)
            fields = {"service": str(key), "result": result, "error": str(error), "again_in_s": delay_s}
            log.warning("pass_failed", extra=fields)
        except Exception as error:
            result = "bug"
            delay_s = self._queue.failed(key)
            log.exception("pass_crashed", extra={"service": str(key), "again_in_s": delay_s})
            await self._tell_crash(key, error)
        self._metrics.observe(Operator.RECONCILE, time.monotonic() - began_s, result)

    async def _tell_crash(self, key: ServiceKey, crash: Exception) -> None:
        """A service of which nothing can be said must not take the others' passes with it."""
        try:
            await self._reconciler.report_crash(key, crash)
        except Exception as error:
            log.warning("crash_not_reported", extra={"service": str(key), "error": repr(error)})

    async def _compete(self) -> None:
        await self._leadership.step()  # who leads can be told at once
        await self._watch.synced.wait()
        await self._leadership.run()

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(self._settings.timings.resync_s)
            self._add_all()

    async def _beat(self) -> None:
        while True:
            self._beat_s = time.monotonic()
            await asyncio.sleep(_BEAT_S)

    def _leads(self, leads: bool) -> None:
        self._metrics.set(Operator.LEADER, 1 if leads else 0)
        if leads:
            self._groups.begin()
            self._add_all()
        else:
            self._reconciler.forget_all()

    def _add_all(self) -> None:
        for key in self._cache.services():
            self._queue.add(key)

    def _holds(self) -> bool:
        return self._leadership.holds()

    def _fit(self) -> bool:
        """Whether leading would be of use: something can be watched, and what is known of it is not old."""
        age_s = self._watch.streams.age_s()
        fresh = age_s is not None and age_s < self._settings.timings.live_watch_s
        return self._watch.synced.is_set() and self._watch.knows_any() and fresh

    def _views(self) -> Views:
        trails, leadership = self._reconciler.explanation, self._leadership
        return Views(self._health, self._readiness, self._exposition, trails, self._holds, leadership.holder)

    def _health(self) -> Sequence[Check]:
        """The loop turns, and no watch stream is older than the server lets one get, or has waited so long to open.

        While the server answers nothing at all, old streams are not this process's fault: a restart would only
        lose what it remembers.
        """
        timings, age_s = self._settings.timings, self._watch.streams.age_s()
        beat_s = time.monotonic() - self._beat_s
        watch = "not watching yet" if age_s is None else f"oldest answer to a stream {age_s:.0f} s ago"
        return (
            Check("loop", beat_s < timings.live_loop_s, f"latest beat {beat_s:.1f} s ago"),
            Check("watch", age_s is None or age_s < timings.live_watch_s or not self._cluster.answers(), watch),
        )

    def _readiness(self) -> Sequence[Check]:
        if not self._watch.synced.is_set():
            return (Check("caches", False, "not synced"),)
        refused = ", ".join(self._watch.refused())
        unlisted = ", ".join(self._groups.unlisted())
        words = f"synced; no access to {refused}" if refused else "synced"
        words += f"; LeaderWorkerSets not listed yet: {unlisted}" if unlisted else ""
        return (Check("caches", self._watch.knows_any(), words), *(note() for note in self._notes))

    def _exposition(self) -> bytes:
        self._metrics.set(Operator.RECONCILE_QUEUE_DEPTH, len(self._queue))
        return self._metrics.exposition()
