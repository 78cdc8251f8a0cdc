"""Watching: kopf as a pure reader, and a cache that is checked against what exists."""

import asyncio
import itertools
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_operator import cluster
from pagefleet_operator.cache import ServiceKey, WatchCache
from pagefleet_operator.kinds import WATCHED, Kind
from pagefleet_operator.settings import Settings, Timings
from pagefleet_operator.watch import CappedBackoff, Watch, kopf_settings


class Lister:
    """What exists, by kind."""

    def __init__(self) -> None:
        self.live: dict[str, set[str]] = {kind: set() for kind in WATCHED}
        self.fails = 0

    async def uids(self, kind: Kind, namespace: str | None) -> set[str]:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise cluster.Unavailable("later")
        return set(self.live[kind.name])


def _body(uid: str, name: str = "s") -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": "1"}}


def _watch(lister: Lister, changed: list[ServiceKey]) -> tuple[Watch, WatchCache]:
    cache = WatchCache()
    timings = Timings(relist_settle_s=0.01, resync_s=0.05)
    return Watch(Settings(timings=timings), cache, lister, changed.append), cache


def _open_streams(watch: Watch) -> None:
    watch.streams.opened_now(*(f"/{kind}" for kind in WATCHED))


def test_tries_go_on_for_ever_and_never_wait_longer_than_the_cap() -> None:
    delays = list(itertools.islice(CappedBackoff(5.0), 2000))
    assert delays[:3] == [0.25, 0.5, 1.0]
    assert max(delays) == delays[-1] == 5.0


def test_kopf_writes_nothing_and_no_silent_connection_lives_long() -> None:
    settings = kopf_settings(Timings())
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    assert settings.watching.inactivity_timeout <= 70
    assert settings.watching.server_timeout is not None
    assert settings.watching.client_timeout is not None
    assert settings.watching.connect_timeout is not None
    assert not settings.networking.trust_env


def test_only_indexes_and_events_are_registered_with_kopf() -> None:
    watch, _ = _watch(Lister(), [])
    registry = watch.registry(lambda _: pytest.fail("no login here"))
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._webhooks.get_all_handlers()
    assert len(list(registry._indexing.get_all_handlers())) == len(WATCHED)
    assert len(list(registry._watching.get_all_handlers())) == len(WATCHED)


async def test_the_cache_is_in_step_only_when_everything_that_exists_is_in_it() -> None:
    lister = Lister()
    lister.live["Pod"] = {"p"}
    lister.fails = 2
    watch, cache = _watch(lister, [])
    task = asyncio.create_task(watch.keep_in_step())
    await asyncio.sleep(0.05)
    assert not watch.synced.is_set()
    _open_streams(watch)
    await asyncio.sleep(0.7)
    assert not watch.synced.is_set()
    cache.put("Pod", _body("p"))
    async with asyncio.timeout(2):
        await watch.synced.wait()
    task.cancel()


async def test_what_went_unnoticed_is_dropped_and_its_service_looked_at() -> None:
    lister, changed = Lister(), list[ServiceKey]()
    watch, cache = _watch(lister, changed)
    for kind, uid in ((labels.KIND, "u"), ("Deployment", "d")):
        cache.put(kind, _body(uid))
        lister.live[kind] = {uid}
    _open_streams(watch)
    task = asyncio.create_task(watch.keep_in_step())
    async with asyncio.timeout(2):
        await watch.synced.wait()
        lister.live["Deployment"] = set()
        while not changed:  # noqa: ASYNC110 - a list of the test's
            await asyncio.sleep(0.01)
    assert changed[0] == ServiceKey("n", "s")
    assert cache.uids("Deployment") == set()
    assert cache.uids(labels.KIND) == {"u"}
    task.cancel()


async def test_a_listing_that_fails_drops_nothing() -> None:
    lister = Lister()
    watch, cache = _watch(lister, [])
    cache.put(labels.KIND, _body("u"))
    lister.live[labels.KIND] = {"u"}
    _open_streams(watch)
    task = asyncio.create_task(watch.keep_in_step())
    async with asyncio.timeout(2):
        await watch.synced.wait()
    lister.fails = 10_000
    await asyncio.sleep(0.2)
    assert cache.uids(labels.KIND) == {"u"}
    task.cancel()


async def test_the_age_of_the_watch_is_that_of_its_oldest_stream() -> None:
    watch, _ = _watch(Lister(), [])
    assert watch.streams.age_s() is None
    watch.streams.opened_now("/a")
    await asyncio.sleep(0.05)
    watch.streams.opened_now("/b")
    assert (watch.streams.age_s() or 0) >= 0.05
    watch.streams.opened_now("/a")
    assert (watch.streams.age_s() or 0) < 0.05
