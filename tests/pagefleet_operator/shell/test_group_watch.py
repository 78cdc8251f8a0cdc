"""LeaderWorkerSets are found by lists, with a CRD that comes and goes."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator import cluster
from pagefleet_operator.cache import ServiceKey, WatchCache
from pagefleet_operator.group_watch import GroupWatch
from pagefleet_operator.grouping import Grouping
from pagefleet_operator.kinds import GROUP_SET, Kind
from pagefleet_operator.supplies import Stays

KEY = ServiceKey("n", "s")


class Lister:
    """What exists in each namespace, or the server's refusal."""

    def __init__(self) -> None:
        self.answer: list[dict[str, Any]] | cluster.ApiError = []
        self.asked = 0

    async def ours(self, kind: Kind, namespace: str | None) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        self.asked += 1
        if isinstance(self.answer, cluster.ApiError):
            raise self.answer
        return self.answer


class Keys:
    """Services to look at: at once, or with a failure's patience."""

    def __init__(self) -> None:
        self.added: list[ServiceKey] = []
        self.nudged: list[ServiceKey] = []

    def add(self, key: ServiceKey) -> None:
        self.added.append(key)

    def nudge(self, key: ServiceKey) -> None:
        self.nudged.append(key)


class Scene:
    """A watch under way over one service."""

    def __init__(self) -> None:
        self.cache, self.lister, self.keys = WatchCache(), Lister(), Keys()
        meta = {"namespace": "n", "name": "s", "uid": "u", "resourceVersion": "1"}
        self.cache.put(labels.KIND, {"metadata": meta})
        self.watch = GroupWatch((None,), self.cache, self.lister, self.keys, interval_s=0.001)

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
        await scene.watch.synced.wait()
        scene.lister.answer = [group_set()]
        await scene.until(lambda: scene.sets)
        await scene.two_more()
        assert scene.keys.nudged == [KEY]
        scene.lister.answer = [group_set(6)]
        await scene.until(lambda: len(scene.keys.nudged) == 2)
        scene.lister.answer = []
        await scene.until(lambda: not scene.sets)
        await scene.until(lambda: len(scene.keys.nudged) == 3)
    assert not scene.keys.added


async def test_a_server_without_the_kind_is_told_from_one_that_does_not_answer() -> None:
    scene = Scene()
    scene.lister.answer = cluster.Unavailable("later")
    async with scene:
        await scene.two_more()
        assert not scene.watch.synced.is_set()
        scene.lister.answer = cluster.NotFound("404 page not found")
        await scene.watch.synced.wait()
        assert "no CRD leaderworkersets.leaderworkerset.x-k8s.io: install" in (scene.cache.lack(GROUP_SET.name) or "")
        assert not scene.keys.added
        scene.lister.answer = [group_set()]
        await scene.until(lambda: scene.keys.added == [KEY])
        assert scene.cache.lack(GROUP_SET.name) is None
        scene.lister.answer = cluster.Refused("forbidden")
        await scene.until(lambda: scene.keys.added == [KEY, KEY])
        assert "may not list leaderworkersets (forbidden)" in (scene.cache.lack(GROUP_SET.name) or "")
        assert not scene.sets


def test_pods_wait_for_the_kind_and_the_condition_says_the_way_out() -> None:
    cache = WatchCache()
    supplier = Grouping(cache)
    assert supplier.plan(grouped_service(), None, held_back=False).lack is None
    cache.note_lack(GROUP_SET.name, "this cluster has none: install LWS")
    lack = supplier.plan(grouped_service(), None, held_back=False).lack
    assert lack is not None
    assert (lack.stays, lack.ready.reason, lack.ready.status) == (Stays.ALL, Reason.LEADER_WORKER_SET_MISSING, False)
    assert lack.stalled is not None
    assert lack.stalled.message == (
        "engine.parallelism.pipeline 2 needs a LeaderWorkerSet, and this cluster has none: install LWS, or set "
        "engine.parallelism.pipeline: 1"
    )
