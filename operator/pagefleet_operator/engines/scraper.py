"""Engines and downloads in pods: the only module of the operator that speaks to them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

import aiohttp
from pydantic import ValidationError

from pagefleet_api import labels
from pagefleet_api.download import PATH as PROGRESS_PATH
from pagefleet_api.download import DownloadProgress
from pagefleet_api.load import Load, LoadReport
from pagefleet_api.runtimes import TRAITS, Runtime
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.engines import exposition, translation
from pagefleet_operator.facts.latencies import Latencies
from pagefleet_operator.facts.observed import Pod, Sample
from pagefleet_operator.metrics import Metrics, Operator
from pagefleet_operator.settings import Timings

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

_NO_SAMPLES: Mapping[str, Sample] = MappingProxyType({})
_NO_LATENCIES: Mapping[str, Latencies] = MappingProxyType({})
_LOAD_LIMIT_BYTES = 65536
"""A sample has a few hundred bytes."""
_METRICS_LIMIT_BYTES = 4 * 2**20
"""An exposition has some ten thousand."""


def admin_address(pod: Pod) -> str | None:
    """Base URL of the port where a pod tells its load; None before it has an address."""
    if pod.ip is None:
        return None
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return f"http://{host}:{labels.ADMIN_PORT if pod.place is None else pod.place.port}"


@dataclass(slots=True)
class _Watched:
    pods: tuple[Pod, ...]
    interval_s: float
    matters: bool
    with_latencies: bool = False
    at_once: bool = False
    """The next round is due now, as something is asked for that no round has brought."""
    samples: dict[str, Sample] = field(default_factory=dict)
    latencies: dict[str, Latencies] = field(default_factory=dict)
    sooner: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class BadAnswer(Exception):
    """An engine's answer that is no sample; `reason` is the label of `scrape_errors_total`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Scraper:
    """Samples of every watched service's pods, all pods of a service at once over kept connections.

    A bad answer leaves the pod's last good sample to age: missing is never zero. A sample is one container's: it
    goes when that has restarted.
    """

    def __init__(
        self,
        timings: Timings,
        metrics: Metrics,
        changed: Callable[[ServiceKey], None],
        address: Callable[[Pod], str | None] = admin_address,
    ) -> None:
        self._timings, self._metrics, self._changed, self._address = timings, metrics, changed, address
        self._watched: dict[ServiceKey, _Watched] = {}
        self._session: aiohttp.ClientSession | None = None

    def watch(
        self, key: ServiceKey, pods: Sequence[Pod], *, interval_s: float, matters: bool, latencies: bool = False
    ) -> None:
        """Sample these pods from now on. `matters`: report each round, as a decision may depend on it.

        latencies: read histograms too, which cost an engine and us a hundred times as much as a sample.
        """
        wanted = tuple(pod for pod in pods if pod.active and pod.running and pod.tells)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(wanted, interval_s, matters, latencies)
            self._begin(key, watched)
            return
        watched.at_once = watched.at_once or latencies > watched.with_latencies
        if interval_s < watched.interval_s or watched.at_once:
            watched.sooner.set()
        watched.pods, watched.interval_s, watched.matters = wanted, interval_s, matters
        watched.with_latencies = latencies
        alive = {(pod.uid, pod.restarts) for pod in wanted}
        watched.samples = {uid: one for uid, one in watched.samples.items() if (uid, one.restarts) in alive}
        measured = watched.latencies.items() if latencies else ()
        watched.latencies = {uid: one for uid, one in measured if (uid, one.restarts) in alive}

    def forget(self, key: ServiceKey) -> None:
        """Stop sampling a service."""
        watched = self._watched.pop(key, None)
        if watched is not None and watched.task is not None:
            watched.task.cancel()

    def samples(self, key: ServiceKey) -> Mapping[str, Sample]:
        """Latest good sample by pod uid."""
        watched = self._watched.get(key)
        return dict(watched.samples) if watched is not None else _NO_SAMPLES

    def latencies(self, key: ServiceKey) -> Mapping[str, Latencies]:
        """Latest measurements by pod uid; none unless `watch` was asked for them."""
        watched = self._watched.get(key)
        return dict(watched.latencies) if watched is not None else _NO_LATENCIES

    async def look(self, key: ServiceKey) -> None:
        """One round out of turn: what a choice between pods rests on should be of this moment."""
        watched = self._watched.get(key)
        if watched is not None:
            await self._round(key, watched)

    async def drain(self, pod: Pod) -> bool:
        """Ask an engine to finish what it has and take no more; whether it agreed."""
        return await self._tell(pod, "drain")

    async def undrain(self, pod: Pod) -> bool:
        """Ask a draining engine to serve again; whether it agreed."""
        return await self._tell(pod, "undrain")

    async def progress(self, pod: Pod) -> DownloadProgress | None:
        """How far the download in a pod is; None when it does not tell, as before it knows what there is."""
        try:
            status, text = await self._ask("GET", pod, PROGRESS_PATH.lstrip("/"))
            return DownloadProgress.model_validate_json(text) if status == 200 else None
        except (BadAnswer, ValidationError):
            return None

    async def close(self) -> None:
        """Stop all sampling."""
        for key in list(self._watched):
            self.forget(key)
        if self._session is not None:
            await self._session.close()

    def _begin(self, key: ServiceKey, watched: _Watched) -> None:
        if self._watched.get(key) is watched:
            watched.task = asyncio.create_task(self._rounds(key, watched), name=f"scrape {key}")
            watched.task.add_done_callback(lambda task: self._ended(key, watched, task))

    def _ended(self, key: ServiceKey, watched: _Watched, task: "asyncio.Task[None]") -> None:
        """Rounds end only when cancelled; those that a bug ended begin again, as a fleet without samples is blind."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("scraping_crashed", exc_info=error, extra={"service": str(key)})
            asyncio.get_running_loop().call_later(watched.interval_s, self._begin, key, watched)

    async def _rounds(self, key: ServiceKey, watched: _Watched) -> None:
        while True:
            began_s, watched.at_once = time.monotonic(), False
            await self._round(key, watched)
            if watched.matters and watched.pods:
                self._changed(key)
            while (left_s := began_s + watched.interval_s - time.monotonic()) > 0 and not watched.at_once:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(watched.sooner.wait(), left_s)
                watched.sooner.clear()

    async def _round(self, key: ServiceKey, watched: _Watched) -> None:
        asked = [self._sample(key, watched, pod) for pod in watched.pods]
        asked += [self._measure(key, watched, pod) for pod in watched.pods if watched.with_latencies]
        await asyncio.gather(*asked)

    async def _sample(self, key: ServiceKey, watched: _Watched, pod: Pod) -> None:
        began_s = time.monotonic()  # what the engine answers is at least as new as this
        load = await self._counted(key, pod, self._load(pod))
        if load is not None and self._watched.get(key) is watched:
            watched.samples[pod.uid] = Sample(load, began_s, pod.restarts)

    async def _measure(self, key: ServiceKey, watched: _Watched, pod: Pod) -> None:
        measured = await self._counted(key, pod, self._latencies(pod))
        if measured is not None and self._watched.get(key) is watched and watched.with_latencies:
            watched.latencies[pod.uid] = measured

    async def _counted(self, key: ServiceKey, pod: Pod, asked: Awaitable[_Answer]) -> _Answer | None:
        """An answer; None for a bad one, which counts as an error where the pod should have known better."""
        try:
            return await asked
        except BadAnswer as bad:
            if pod.ready:
                self._metrics.add(Operator.SCRAPE_ERRORS, *key.series, bad.reason)
            return None

    async def _latencies(self, pod: Pod) -> Latencies:
        names = TRAITS[Runtime.PAGEFLEET].names if pod.place is None else pod.place.names
        told = await self._exposition(pod, names.timing_prefixes())
        return translation.latencies(told, names, restarts=pod.restarts)

    async def _load(self, pod: Pod) -> Load:
        if pod.place is not None:
            names = pod.place.names
            return translation.load(await self._exposition(pod, names.load_prefixes()), names)
        status, text = await self._ask("GET", pod, "load")
        if status != 200:
            raise BadAnswer(f"http_{status}")
        try:
            return LoadReport.model_validate_json(text)
        except ValidationError as error:
            raise BadAnswer("malformed") from error

    async def _exposition(self, pod: Pod, prefixes: Collection[str]) -> exposition.Exposition:
        path = "metrics" if pod.place is None else pod.place.path.lstrip("/")
        status, text = await self._ask("GET", pod, path, _METRICS_LIMIT_BYTES)
        if status != 200:
            raise BadAnswer(f"http_{status}")
        try:
            return exposition.parse(text.decode(), prefixes)
        except ValueError as error:
            raise BadAnswer("malformed") from error

    async def _tell(self, pod: Pod, verb: str) -> bool:
        """Twice, as the kept connection may have been closed by the engine a moment ago.

        A foreign engine needs no telling: it knows no drain.
        """
        if pod.foreign:
            return True
        for _ in range(2):
            try:
                status, _text = await self._ask("POST", pod, verb)
            except BadAnswer as bad:
                log.warning("engine_not_told", extra={"pod": pod.name, "verb": verb, "reason": bad.reason})
            else:
                return status < 300
        return False

    async def _ask(self, method: str, pod: Pod, path: str, limit_bytes: int = _LOAD_LIMIT_BYTES) -> tuple[int, bytes]:
        """Status and body. Redirects are not followed: a pod must not send us anywhere, to another service's say."""
        address = self._address(pod)
        if address is None:
            raise BadAnswer("no_address")
        try:
            async with self._client().request(method, f"{address}/{path}", allow_redirects=False) as answer:
                return answer.status, await _body(answer, limit_bytes)
        except TimeoutError as error:
            raise BadAnswer("timeout") from error
        except aiohttp.ClientConnectorError as error:
            raise BadAnswer("refused") from error
        except (aiohttp.ClientError, OSError) as error:
            raise BadAnswer("broken") from error

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._timings.scrape_idle_s * 2),
                timeout=aiohttp.ClientTimeout(total=self._timings.scrape_timeout_s),
                trust_env=False,
            )
        return self._session


async def _body(answer: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """The whole body, when it is of a size that an engine would send."""
    try:
        await answer.content.readexactly(limit_bytes)
    except asyncio.IncompleteReadError as end:
        return end.partial
    raise BadAnswer("too_large")
