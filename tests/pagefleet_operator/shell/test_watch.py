"""Watching: kopf as a pure reader, and a cache that is checked against what exists."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_operator.apiserver import cluster
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.watch import CappedBackoff, Watch, kopf_settings
from pagefleet_operator.kinds import WATCHED, Kind
from pagefleet_operator.settings import Settings, Timings
from tests.pagefleet_operator.shell.keys import Keys


class Lister:
    """What exists, by kind."""

    def __init__(self) -> None:
        self.live: dict[str, set[str]] = {kind: set() for kind in WATCHED}
        self.fails = 0
        self.refused: set[str | None] = set()

    async def uids(self, kind: Kind, namespace: str | None) -> set[str]:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise cluster.Unavailable("later")
        if namespace in self.refused:
            raise cluster.Refused("forbidden")
        return set(self.live[kind.name])


def _body(uid: str, name: str = "s", *, namespace: str = "n", version: int = 1, generation: int = 1) -> dict[str, Any]:
    meta = {"namespace": namespace, "name": name, "uid": uid, "generation": generation}
    return {"metadata": {**meta, "resourceVersion": str(version)}}


def _watch(lister: Lister, keys: Keys | None = None, *namespaces: str) -> tuple[Watch, WatchCache]:
    cache = WatchCache()
    timings = Timings(relist_settle_s=0.01, resync_s=0.05)
    return Watch(Settings(timings=timings, namespaces=namespaces), cache, lister, keys or Keys()), cache


def _answer(watch: Watch, namespace: str | None = None, *, status: int = 200) -> None:
    for kind in WATCHED.values():
        watch.streams.answered(kind.path(namespace), status=status)


async def _until(state: Callable[[], object]) -> None:
    async with asyncio.timeout(2):
        while not state():  # noqa: ASYNC110 - the state is a list of the test's
            await asyncio.sleep(0.01)


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


def test_only_events_are_registered_with_kopf() -> None:
    watch, _ = _watch(Lister())
    registry = watch.registry(lambda _: pytest.fail("no login here"))
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()
    assert not registry._webhooks.get_all_handlers()
    assert not list(registry._indexing.get_all_handlers())
    assert len(list(registry._watching.get_all_handlers())) == len(WATCHED)


async def test_the_cache_is_in_step_only_when_everything_that_exists_is_in_it() -> None:
    lister = Lister()
    lister.live["Pod"] = {"p"}
    lister.fails = 2
    watch, cache = _watch(lister)
    task = asyncio.create_task(watch.keep_in_step())
    await asyncio.sleep(0.05)
    assert not watch.synced.is_set()
    _answer(watch)
    await asyncio.sleep(0.7)
    assert not watch.synced.is_set()
    cache.put("Pod", _body("p"))
    async with asyncio.timeout(2):
        await watch.synced.wait()
    task.cancel()


async def test_what_went_unnoticed_is_dropped_and_its_service_looked_at() -> None:
    lister, keys = Lister(), Keys()
    watch, cache = _watch(lister, keys)
    for kind, uid in ((labels.KIND, "u"), ("Deployment", "d")):
        cache.put(kind, _body(uid))
        lister.live[kind] = {uid}
    _answer(watch)
    task = asyncio.create_task(watch.keep_in_step())
    await _until(watch.synced.is_set)
    keys.added.clear()
    lister.live["Deployment"] = set()
    await _until(lambda: keys.added)
    assert keys.added == [ServiceKey("n", "s")]
    assert cache.uids("Deployment") == set()
    assert cache.uids(labels.KIND) == {"u"}
    task.cancel()


async def test_a_listing_that_fails_drops_nothing() -> None:
    lister = Lister()
    watch, cache = _watch(lister)
    cache.put(labels.KIND, _body("u"))
    lister.live[labels.KIND] = {"u"}
    _answer(watch)
    task = asyncio.create_task(watch.keep_in_step())
    async with asyncio.timeout(2):
        await watch.synced.wait()
    lister.fails = 10_000
    await asyncio.sleep(0.2)
    assert cache.uids(labels.KIND) == {"u"}
    task.cancel()


async def test_the_age_of_the_watch_is_that_of_its_oldest_answer_and_counts_from_the_first_request() -> None:
    watch, _ = _watch(Lister())
    assert watch.streams.age_s() is None
    watch.streams.begin()
    await asyncio.sleep(0.05)
    first, *others = (kind.path(None) for kind in WATCHED.values())
    for path in others:
        watch.streams.answered(path, status=200)
    assert (watch.streams.age_s() or 0) >= 0.05
    watch.streams.answered(first, status=200)
    assert (watch.streams.age_s() or 0) < 0.05


def test_a_listing_opens_no_stream_and_an_error_is_no_answer() -> None:
    watch, _ = _watch(Lister())
    watch.streams.begin()
    for kind in WATCHED.values():
        watch.streams.answered(kind.path(None), status=200, watch=False)
        watch.streams.answered(kind.path(None), status=500)
    assert not watch.streams.is_open(None)
    assert not watch.streams.is_refused(None)


def test_a_server_below_a_path_of_its_own_is_understood() -> None:
    watch, _ = _watch(Lister())
    for kind in WATCHED.values():
        watch.streams.answered(f"/clusters/one{kind.path(None)}", status=200)
    assert watch.streams.is_open(None)


async def test_a_namespace_that_refuses_us_does_not_keep_the_others_from_being_served() -> None:
    lister, keys = Lister(), Keys()
    watch, cache = _watch(lister, keys, "n", "gone")
    watch.streams.begin()
    task = asyncio.create_task(watch.keep_in_step())
    cache.put(labels.KIND, _body("u"))
    lister.live[labels.KIND], lister.refused = {"u"}, {"gone"}
    _answer(watch, "n")
    await asyncio.sleep(0.05)
    assert not watch.synced.is_set()
    _answer(watch, "gone", status=403)
    await _until(watch.synced.is_set)
    assert (watch.knows("n"), watch.knows("gone"), watch.knows("other")) == (True, False, False)
    assert watch.refused() == ["gone"]
    assert ServiceKey("n", "s") in keys.added
    assert (watch.streams.age_s() or 0) < 1.0
    task.cancel()


async def test_a_namespace_counts_as_empty_while_it_refuses_us_and_is_learnt_anew_after_that() -> None:
    lister, keys = Lister(), Keys()
    watch, cache = _watch(lister, keys, "n")
    task = asyncio.create_task(watch.keep_in_step())
    for kind, uid in ((labels.KIND, "u"), ("Deployment", "d")):
        cache.put(kind, _body(uid))
        lister.live[kind] = {uid}
    _answer(watch, "n")
    await _until(lambda: watch.knows("n"))
    lister.refused = {"n"}
    watch.streams.answered(WATCHED["Pod"].path("n"), status=403)
    assert not watch.knows("n")
    keys.added.clear()
    await _until(lambda: keys.added == [ServiceKey("n", "s")])
    lister.refused, lister.live["Deployment"] = set(), set()
    keys.added.clear()
    _answer(watch, "n")
    await _until(lambda: watch.knows("n"))
    assert cache.uids("Deployment") == set()
    assert set(keys.added) == {ServiceKey("n", "s")}
    task.cancel()


@pytest.mark.parametrize(
    ("kind", "change", "generation", "at_once"),
    [
        (labels.KIND, "MODIFIED", 2, True),
        (labels.KIND, "MODIFIED", 1, False),
        (labels.KIND, "DELETED", 1, True),
        ("Deployment", "MODIFIED", 9, False),
        ("Deployment", "DELETED", 1, False),
    ],
    ids=["respecified", "own-status", "gone", "child-changed", "child-gone"],
)
def test_only_what_changes_the_wish_cuts_the_delay_of_a_failure_short(
    kind: str, change: str, generation: int, at_once: bool
) -> None:
    keys = Keys()
    watch, cache = _watch(Lister(), keys)
    cache.put(labels.KIND, _body("u"))
    cache.put("Deployment", _body("d"))
    uid = "u" if kind == labels.KIND else "d"
    watch.noticed(kind, change, _body(uid, version=2, generation=generation))
    assert (bool(keys.added), bool(keys.nudged)) == (at_once, not at_once)


def test_a_new_service_is_looked_at_at_once() -> None:
    keys = Keys()
    watch, _ = _watch(Lister(), keys)
    watch.noticed(labels.KIND, "ADDED", _body("u"))
    assert keys.added == [ServiceKey("n", "s")]
