"""LeaderWorkerSets are found by lists, with a CRD that comes and goes."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator.apiserver import cluster
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.group_watch import GroupWatch
from pagefleet_operator.kinds import GROUP_SET, Kind
from pagefleet_operator.reconciling.grouping import Grouping
from pagefleet_operator.supplies import Stays
from tests.pagefleet_operator.shell.keys import Keys

KEY = ServiceKey("n", "s")


class Lister:
    """What exists in each namespace, or the server's refusal."""

    def __init__(self) -> None:
        self.answer: list[dict[str, Any]] | cluster.ApiError = []
        self.refusing: set[str | None] = set()
        self.asked = 0
        self.read_names: list[str] = []

    async def listed(self, kind: Kind, namespace: str | None) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        self.asked += 1
        if namespace in self.refusing:
            raise cluster.Refused("forbidden")
        if isinstance(self.answer, cluster.ApiError):
            raise self.answer
        return [{"metadata": body["metadata"]} for body in self.answer]

    async def read(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        self.read_names.append(name)
        found = self.answer if isinstance(self.answer, list) else ()
        return next((body for body in found if body["metadata"]["name"] == name), None)


def asking(name: str = "s", namespace: str = "n", pipeline: int = 2) -> dict[str, Any]:
    """A service that wants groups."""
    meta = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", "resourceVersion": "1"}
    return {"metadata": meta, "spec": {"engine": {"parallelism": {"pipeline": pipeline}}}}


class Scene:
    """A watch under way over one service."""

    def __init__(self, *namespaces: str | None) -> None:
        self.cache, self.lister, self.keys, self.leads = WatchCache(), Lister(), Keys(), True
        self.cache.put(labels.KIND, asking())
        scopes = namespaces or (None,)
        self.watch = GroupWatch(scopes, self.cache, self.lister, self.keys, lambda: self.leads, interval_s=0.001)

    async def __aenter__(self) -> "Scene":
        self._task = asyncio.create_task(self.watch.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until(self, state: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not state():  # noqa: ASYNC110 - the state is what the watch has made of its lists
                await asyncio.sleep(0.001)

    async def two_more(self) -> None:
        """So many lists; the first may have begun before what the test changed."""
        wanted = self.lister.asked + 2
        await self.until(lambda: self.lister.asked >= wanted)

    @property
    def sets(self) -> list[str]:
        return [child.name for child in self.cache.children(KEY) if child.kind == GROUP_SET.name]

    def lack(self, namespace: str = "n") -> str | None:
        return self.cache.lack(GROUP_SET.name, namespace)


def group_set(version: int = 5) -> dict[str, Any]:
    marks = {labels.SERVICE: "s", labels.MANAGED_BY: labels.FIELD_MANAGER}
    meta = {"namespace": "n", "name": "s-x", "uid": "g", "resourceVersion": str(version), "labels": marks}
    return {"metadata": meta}


def grouped_service() -> InferenceService:
    engine = {"runtime": "vllm", "image": "v", "parallelism": {"pipeline": 2}}
    meta = {"name": "s", "namespace": "n", "uid": "u"}
    return InferenceService.parse({"metadata": meta, "spec": {"model": {"uri": "file:///m"}, "engine": engine}})


async def test_a_set_is_kept_its_service_looked_at_when_it_changes_and_forgotten_when_it_goes() -> None:
    async with Scene() as scene:
        await scene.until(lambda: scene.watch.knows(KEY))
        assert scene.keys.added == [KEY]
        scene.lister.answer = [group_set()]
        await scene.until(lambda: scene.sets)
        await scene.two_more()
        assert scene.keys.nudged == [KEY]
        scene.lister.answer = [group_set(6)]
        await scene.until(lambda: len(scene.keys.nudged) == 2)
        await scene.two_more()
        assert scene.lister.read_names == ["s-x", "s-x"], "a version that is known is not read again"
        scene.lister.answer = []
        await scene.until(lambda: not scene.sets)
        await scene.until(lambda: len(scene.keys.nudged) == 3)
    assert scene.keys.added == [KEY]


async def test_a_server_without_the_kind_is_told_from_one_that_does_not_answer() -> None:
    scene = Scene()
    scene.lister.answer = cluster.Unavailable("later")
    async with scene:
        scene.cache.put(labels.KIND, asking("alone", pipeline=1))
        await scene.two_more()
        assert scene.watch.knows(ServiceKey("n", "alone")), "who never heard of groups is not kept waiting"
        assert (scene.watch.knows(KEY), scene.watch.unlisted(), scene.keys.added) == (False, ["*"], [])
        scene.lister.answer = cluster.NotFound("404 page not found")
        await scene.until(lambda: scene.watch.knows(KEY))
        assert "no CRD leaderworkersets.leaderworkerset.x-k8s.io: install" in (scene.lack() or "")
        scene.lister.answer = [group_set()]
        await scene.until(lambda: scene.keys.added == [KEY, KEY])
        assert scene.lack() is None
        assert not scene.watch.unlisted()


@pytest.mark.parametrize("error", [cluster.Refused("forbidden"), cluster.NotFound("404 page not found")])
async def test_sets_that_were_out_of_sight_are_there_again_as_they_were(error: cluster.ApiError) -> None:
    scene = Scene()
    scene.lister.answer = [group_set()]
    async with scene:
        await scene.until(lambda: scene.sets)
        scene.lister.answer = error
        await scene.until(scene.lack)
        assert bool(scene.sets) == isinstance(error, cluster.Refused), "a refusal tells nothing of what there is"
        scene.lister.answer = [group_set()]
        await scene.until(lambda: scene.lack() is None)
        assert scene.sets


async def test_a_namespace_that_refuses_us_is_the_only_one_that_lacks_anything() -> None:
    scene = Scene("n", "closed")
    scene.cache.put(labels.KIND, asking(namespace="closed"))
    scene.cache.put(labels.KIND, asking("alone", pipeline=1))
    scene.lister.refusing = {"closed"}
    async with scene:
        await scene.until(lambda: not scene.watch.unlisted())
        for _ in range(5):
            await scene.two_more()
        assert scene.lack() is None
        assert "may not list leaderworkersets (forbidden)" in (scene.lack("closed") or "")
        assert sorted(scene.keys.added) == [("closed", "s"), KEY], "each once, and nobody without groups"
        scene.lister.refusing = set()
        await scene.until(lambda: scene.lack("closed") is None)
        assert sorted(scene.keys.added) == [("closed", "s"), ("closed", "s"), KEY]


async def test_a_replica_lists_while_it_leads_and_anew_when_it_begins_to() -> None:
    scene = Scene()
    scene.leads = False
    async with scene:
        await asyncio.sleep(0.02)
        assert (scene.lister.asked, scene.watch.unlisted()) == (0, [])
        scene.leads = True
        scene.watch.begin()
        await scene.until(lambda: scene.watch.knows(KEY))
        scene.watch.begin()
        assert not scene.watch.knows(KEY), "what it knows is of the time before"
        await scene.until(lambda: scene.watch.knows(KEY))
        assert scene.keys.added == [KEY, KEY]


async def test_where_nobody_asks_for_groups_the_server_is_hardly_asked() -> None:
    scene = Scene()
    scene.cache.put(labels.KIND, {**asking(pipeline=1), "metadata": {**asking()["metadata"], "resourceVersion": "2"}})
    scene.watch = GroupWatch((None,), scene.cache, scene.lister, scene.keys, lambda: True, interval_s=0.1)
    async with scene:
        await scene.until(lambda: not scene.watch.unlisted())
        await asyncio.sleep(0.15)
        assert scene.lister.asked == 1
        scene.cache.put(labels.KIND, asking("other"))
        await scene.until(lambda: scene.lister.asked == 2)


def test_pods_wait_for_the_kind_and_the_condition_says_the_way_out() -> None:
    cache = WatchCache()
    supplier = Grouping(cache)
    assert supplier.plan(grouped_service(), None, held_back=False).lack is None
    cache.note_lack(GROUP_SET.name, None, "this cluster has none: install LWS")
    lack = supplier.plan(grouped_service(), None, held_back=False).lack
    assert lack is not None
    assert (lack.stays, lack.ready.reason, lack.ready.status) == (Stays.ALL, Reason.LEADER_WORKER_SET_MISSING, False)
    assert lack.stalled is not None
    assert lack.stalled.message == (
        "engine.parallelism.pipeline 2 needs a LeaderWorkerSet, and this cluster has none: install LWS, or set "
        "engine.parallelism.pipeline: 1"
    )
