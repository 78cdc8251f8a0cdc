"""Models on nodes: what is written to the API server, turn by turn, and what each service is told."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.kinds import CLAIM, DAEMON_SET, NODE, POD, SECRET, VOLUME, Kind
from pagefleet_operator.models import node_cache
from pagefleet_operator.models.node_cache import NodeCache
from pagefleet_operator.plan.node_cache import node_label
from pagefleet_operator.settings import NodeCacheFlags, Settings
from pagefleet_operator.supplies import Lack, Stays
from tests.pagefleet_operator.plan.nodes import ENGINE, made, model_of, node, pod, user
from tests.pagefleet_operator.shell.bench import Bench

SETTINGS = Settings(lease_namespace="system", node_cache=NodeCacheFlags("/var/lib/models"), read_model_secrets=True)
MODEL = {"uri": "hf://org/name", "revision": "v1", "cache": {"mode": "Node"}}


class Server:
    """Keeps what is applied, and refuses what `refuses` names."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.refuses: dict[str, Exception] = {}
        for name in ("a", "b"):
            self.objects["Node", None, name] = node(name)

    def _ask(self, call: str) -> None:
        if call in self.refuses:
            raise self.refuses[call]

    async def items(self, kind: Kind, namespace: str | None, *, marks: str = "", newest: bool = False) -> list[Any]:
        self._ask(f"list {kind.name}")
        found = [body for (of, at, _), body in self.objects.items() if of == kind.name and namespace in (None, at)]
        return [body for body in found if _has(body["metadata"].get("labels") or {}, marks)]

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Any:
        self._ask(f"read {kind.name} {namespace}")
        return self.objects.get((kind.name, namespace, name))

    async def apply(self, manifest: Mapping[str, Any], kind: Kind) -> Any:
        meta = manifest["metadata"]
        self._ask(f"apply {kind.name} {meta.get('namespace')}")
        self.calls.append(f"apply {kind.name}")
        self.objects[kind.name, meta.get("namespace"), meta["name"]] = made(manifest)
        return manifest

    async def delete(self, kind: Kind, live: Mapping[str, Any]) -> None:
        meta = live["metadata"]
        self.calls.append(f"delete {kind.name}")
        del self.objects[kind.name, meta.get("namespace"), meta["name"]]

    async def mark_node(self, name: str, label: str, value: str | None) -> Any:
        self.calls.append(f"{name} {value}")
        body = self.objects["Node", None, name]
        kept = {key: mark for key, mark in body["metadata"]["labels"].items() if key != label}
        marks = kept if value is None else {**kept, label: value}
        self.objects["Node", None, name] = {**body, "metadata": {**body["metadata"], "labels": marks}}
        return self.objects["Node", None, name]


def _has(found: Mapping[str, str], marks: str) -> bool:
    wanted = [mark.partition("=") for mark in marks.split(",") if mark]
    return all(name in found and (not sign or found[name] == value) for name, sign, value in wanted)


class Nothing:
    """No download tells anything."""

    def about(self, key: ServiceKey, pods: Sequence[Any]) -> dict[str, Any]:
        return {}


class Rig:
    """The node cache, with all around it in memory."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.server, self.cache = Server(), WatchCache()
        self.again: list[ServiceKey] = []
        self.nodes = NodeCache(
            settings,
            self.server,  # type: ignore[arg-type]
            self.cache,
            Nothing(),  # type: ignore[arg-type]
            lambda key, _: self.again.append(key),
        )
        self.version = 1

    def service(
        self,
        name: str = "s",
        namespace: str = "n",
        *,
        going: bool = False,
        decided: bool = True,
        engine: Mapping[str, Any] = ENGINE,
        **model: Any,
    ) -> None:
        """decided: a pass has said that its pods are to be made."""
        self.version += 1
        meta = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", "generation": self.version}
        meta |= {"resourceVersion": str(self.version)}
        if decided:
            self.nodes._demand.hold_back(ServiceKey(namespace, name), False)
        meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if going else {}
        spec = {"model": {**MODEL, **model}, "engine": engine}
        self.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": meta, "spec": spec})

    def secret(self, **data: str) -> None:
        self.server.objects["Secret", "n", "t"] = {"metadata": {"name": "t"}, "data": data}

    def reader(self, place: str | None, claim: str) -> None:
        """An engine's pod on a node, or on none yet."""
        meta = {"namespace": "n", "name": f"e-{place}", "uid": f"e-{place}", "resourceVersion": "1"}
        volume = {"name": "models", "persistentVolumeClaim": {"claimName": claim}}
        spec = {"nodeName": place, "volumes": [volume]} if place is not None else {"volumes": [volume]}
        self.cache.put("Pod", {"metadata": meta, "spec": spec, "status": {}})

    async def turn(self) -> list[str]:
        """What a turn writes."""
        self.server.calls.clear()
        store = node_cache._store(SETTINGS)
        assert store is not None
        self.nodes._keep(await self.nodes._turn(store))
        return list(self.server.calls)

    def lack(self, **spec: Any) -> Lack | None:
        """What pods of a service lack."""
        return self.nodes.plan(user(**spec), None, held_back=False).lack

    def told(self, **spec: Any) -> str:
        lack = self.lack(**spec)
        return "" if lack is None else lack.ready.message


FIRST = [
    "apply DaemonSet",
    "apply PersistentVolume",
    "a wanted",
    "b wanted",
]


async def test_a_model_comes_to_its_nodes_and_leaves_them() -> None:
    rig = Rig()
    rig.service()
    await rig.nodes.known(user())
    assert rig.server.calls == FIRST
    assert rig.again == [ServiceKey("n", "s")]
    assert "is to fetch it" in rig.told()
    assert await rig.turn() == ["apply PersistentVolumeClaim"]
    assert await rig.turn() == [] and rig.nodes._is_due(), "its pods may come at any time"
    rig.server.objects["Pod", "system", "p-a"] = pod("a", ready=True)
    assert await rig.turn() == ["a ready"]
    assert rig.lack() is None
    assert await rig.turn() == []
    rig.service(going=True)
    del rig.server.objects["Pod", "system", "p-a"]
    written = [await rig.turn() for _ in range(4)]
    assert written == [
        ["delete PersistentVolumeClaim"],
        ["delete PersistentVolume"],
        ["a None", "b None", "delete DaemonSet"],
        [],
    ]


async def test_another_model_is_not_there_because_the_former_one_was() -> None:
    rig = Rig()
    rig.service()
    await rig.turn()
    await rig.turn()
    rig.server.objects["Pod", "system", "p-a"] = pod("a", ready=True)
    await rig.turn()
    assert rig.lack() is None
    assert rig.lack(replicas=3) is None, "the same model"
    assert "within seconds" in rig.told(model={"revision": "v2"})
    assert "within seconds" in rig.told(secret="t")
    anew = user().model_copy(update={"uid": "of a service made anew"})
    lack = rig.nodes.plan(anew, None, held_back=False).lack
    assert lack is not None and "within seconds" in lack.ready.message


async def test_a_model_is_not_where_pods_are_to_go_because_it_is_where_they_are() -> None:
    rig = Rig()
    rig.service()
    for _ in range(2):
        await rig.turn()
    rig.server.objects["Pod", "system", "p-a"] = pod("a", ready=True)
    await rig.turn()
    assert rig.lack() is None
    lack = rig.lack(podTemplate={"spec": {"nodeSelector": {"kubernetes.io/hostname": "b"}}})
    assert lack is not None and lack.stays is Stays.PLACE
    assert "within seconds" in lack.ready.message


async def test_a_service_that_no_pass_has_looked_at_yet_begins_no_download_and_ends_none() -> None:
    rig = Rig()
    rig.service(decided=False)
    await rig.nodes.known(user())
    assert rig.server.calls == [] and not rig.nodes._is_due()
    rig.nodes.plan(user(), None, held_back=False)
    assert rig.nodes._is_due()
    assert await rig.turn() == FIRST
    restarted = Rig()
    restarted.server = restarted.nodes._cluster = rig.server  # type: ignore[assignment]
    restarted.service(decided=False)
    assert await restarted.turn() == ["apply PersistentVolumeClaim"]
    restarted.nodes.plan(user(), None, held_back=True)
    assert await restarted.turn() == ["delete PersistentVolumeClaim"]


async def test_pods_of_downloads_onto_claims_are_none_of_the_node_caches() -> None:
    rig = Rig()
    done = pod("a")
    done["metadata"]["labels"] = {labels.NAME: "pagefleet-fetch", labels.MODEL: "other"}
    rig.server.objects["Pod", "system", "done"] = done
    await rig.turn()
    assert not rig.nodes._is_due()


async def test_a_node_whose_pods_read_the_model_keeps_it() -> None:
    rig = Rig()
    rig.service()
    for _ in range(2):
        await rig.turn()
    (claim,) = (name for kind, _, name in rig.server.objects if kind == "PersistentVolumeClaim")
    rig.reader("b", claim)
    rig.reader(None, claim)
    rig.server.objects["Node", None, "b"]["spec"]["taints"] = [{"key": "gpu", "effect": "NoSchedule"}]
    rig.nodes._nodes_s = None
    assert await rig.turn() == []
    for uid in rig.cache.uids("Pod"):
        rig.cache.drop("Pod", uid)
    assert await rig.turn() == ["b None"]


async def test_what_is_known_is_not_looked_up_again_and_others_need_no_look() -> None:
    rig = Rig()
    await rig.nodes.known(user(model={"cache": {}}))
    assert rig.nodes._known is None
    rig.service()
    await asyncio.gather(rig.nodes.known(user()), rig.nodes.known(user()))
    assert rig.server.calls == FIRST
    assert rig.nodes.plan(user(model={"cache": {}}), None, held_back=False).cached is None


async def test_before_the_first_look_a_service_waits() -> None:
    assert "within seconds" in Rig().told()


async def test_without_the_charts_value_it_is_refused_with_the_way_out() -> None:
    bench = Bench()
    bench.service(model={"uri": "s3://bucket/name", "cache": {"mode": "Node"}}, engine=ENGINE)
    await bench.passes()
    status = str([body["status"] for body in bench.server.bodies if "conditions" in body.get("status", {})][-1])
    assert "nodeCache.enabled: true" in status and "model.cache.mode: PVC or None" in status
    assert [body["spec"]["replicas"] for body in bench.server.bodies if body.get("kind") == "Deployment"] == [0]


async def test_credentials_need_the_right_to_read_them() -> None:
    rig = Rig(Settings(node_cache=SETTINGS.node_cache))
    assert "readModelSecrets: true" in rig.told(secret="t")
    rig.service(secretRef={"name": "t"})
    assert await rig.turn() == []


async def test_a_service_that_gets_no_pods_wants_no_model() -> None:
    rig = Rig()
    rig.service()
    rig.nodes.plan(user(), None, held_back=True)
    assert await rig.turn() == []
    rig.nodes.plan(user(), None, held_back=False)
    assert await rig.turn() == FIRST


async def test_a_service_that_cannot_be_read_any_more_keeps_its_model() -> None:
    rig = Rig()
    rig.service()
    await rig.turn()
    await rig.turn()
    rig.service(uri="?")
    assert await rig.turn() == []
    rig.service(cache={})
    assert "delete PersistentVolumeClaim" in await rig.turn()
    rig.service("t", uri="?")
    assert "apply DaemonSet" not in await rig.turn()


async def test_what_cannot_be_read_is_read_once_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, read, whole = Rig(), [], InferenceService.parse

    def parse(body: Any) -> InferenceService:
        read.append(body)
        return whole(body)

    monkeypatch.setattr(InferenceService, "parse", parse)
    for _ in range(2):
        rig.service(uri="no model")
        await rig.turn()
        assert await rig.turn() == []
    assert len(read) == 2
    rig.service()
    assert "apply DaemonSet" in await rig.turn(), "once it can be read"


async def test_one_namespaces_quota_is_nobody_elses_trouble() -> None:
    rig = Rig()
    rig.service()
    rig.service("s", "m")
    rig.server.refuses["apply PersistentVolumeClaim m"] = api.Refused("exceeded quota")
    await rig.turn()
    await rig.turn()
    assert "exceeded quota" in rig.told(namespace="m")
    assert "exceeded quota" not in rig.told()


async def test_an_object_that_changed_meanwhile_is_seen_next_time() -> None:
    rig = Rig()
    rig.service()
    rig.server.refuses["apply DaemonSet system"] = api.Outdated("changed")
    assert await rig.turn() == FIRST[1:]


async def test_rights_that_are_missing_are_named() -> None:
    rig = Rig()
    rig.service()
    rig.server.refuses["list PersistentVolume"] = api.Refused("persistentvolumes is forbidden")
    assert await rig.turn() == []
    assert "nodeCache.enabled: true" in rig.told() and "persistentvolumes is forbidden" in rig.told()


async def test_credentials_are_handed_on_and_follow_their_secret() -> None:
    rig, private = Rig(), model_of(user(secret="t")).name
    rig.service(secretRef={"name": "t"})
    await rig.turn()
    assert "Secret n/t, which model.secretRef names, does not exist" in rig.told(secret="t")
    rig.secret(HF_TOKEN="b25l", PATH="eA==")
    assert await rig.turn() == ["apply PersistentVolumeClaim", "apply Secret"]
    assert rig.server.objects["Secret", "system", private]["data"] == {"HF_TOKEN": "b25l"}
    assert await rig.turn() == []
    rig.secret(HF_TOKEN="dHdv")
    assert await rig.turn() == ["apply Secret"]
    rig.server.refuses["read Secret n"] = api.Refused("secrets is forbidden")
    assert await rig.turn() == []
    assert "cannot be handed on: secrets is forbidden" in rig.told(secret="t")


async def test_credentials_are_there_before_the_first_pod_asks_for_them() -> None:
    rig = Rig()
    rig.secret(HF_TOKEN="b25l")
    rig.service(secretRef={"name": "t"})
    assert await rig.turn() == [*FIRST, "apply Secret"]


async def test_a_daemon_set_that_is_refused_is_told_of() -> None:
    rig = Rig()
    rig.secret(HF_TOKEN="b25l")
    rig.service(secretRef={"name": "t"})
    rig.server.refuses["apply DaemonSet system"] = api.Refused("denied by a policy")
    await rig.turn()
    assert "denied by a policy" in rig.told(secret="t")


def breaks(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    """A bug that shows with the model hf://org/bad alone."""
    whole = getattr(place, name)

    def broken(*given: Any) -> Any:
        if "hf://org/bad" in str(given):
            raise RuntimeError("a bug; token=hunter2")
        return whole(*given)

    monkeypatch.setattr(place, name, broken)


BUGS = [(render, "node_model"), (node_cache, "steps_for"), (node_cache, "progress")]


@pytest.mark.parametrize(("place", "name"), BUGS, ids=[name for _, name in BUGS])
async def test_a_bug_over_one_model_is_no_other_models_trouble(
    place: Any, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.service("a", uri="hf://org/bad")
    rig.service("z")
    breaks(monkeypatch, place, name)
    assert (await rig.turn())[-len(FIRST) :] == FIRST
    assert "is to fetch it" in rig.told(name="z")
    bad = rig.lack(name="a", model={"uri": "hf://org/bad"})
    assert bad is not None and bad.ready.reason == Reason.MODEL_FETCH_FAILED
    assert "an error of the operator, not of the service" in bad.ready.message
    assert "RuntimeError: a bug" in bad.ready.message and "hunter2" not in bad.ready.message
    (record,) = [record for record in caplog.records if record.message == "node_model_broken"]
    assert record.__dict__["services"] == ["n/a"] and record.__dict__["model"] and record.exc_info


async def test_a_model_that_is_there_stays_so_while_a_bug_keeps_it_from_being_looked_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, bad = Rig(), {"uri": "hf://org/bad"}
    rig.service(uri="hf://org/bad")
    await rig.turn()
    await rig.turn()
    for place in ("a", "b"):
        rig.server.objects["Pod", "system", place] = pod(place, ready=True, model=model_of(user(model=bad)))
    await rig.turn()
    assert rig.lack(model=bad) is None
    breaks(monkeypatch, node_cache, "steps_for")
    assert await rig.turn() == []
    assert rig.lack(model=bad) is None


async def test_a_bug_in_reading_one_service_is_no_other_services_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.service("a", uri="hf://org/bad")
    rig.service("z")
    breaks(monkeypatch, InferenceService, "parse")
    assert await rig.turn() == FIRST
    assert [record.__dict__["service"] for record in caplog.records if record.exc_info] == ["n/a"]


async def until(rig: Rig, found: Any) -> None:
    for _ in range(1000):
        if found():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(rig.server.calls)


async def test_turns_are_taken_while_this_replica_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "_LOOK_S", 0.001)
    rig, leads = Rig(), True
    rig.service()
    rig.server.refuses["list Node"] = api.Unavailable("no answer")
    task = asyncio.create_task(rig.nodes.run(lambda: leads))
    try:
        await asyncio.sleep(0.01)
        assert rig.server.calls == []
        rig.server.refuses = {"apply DaemonSet system": api.NotLeading("another replica leads")}
        await asyncio.sleep(0.01)
        assert rig.nodes._known is None
        rig.server.refuses = {"apply DaemonSet system": RuntimeError("a bug")}
        await asyncio.sleep(0.01)
        rig.server.refuses.clear()
        await until(rig, lambda: rig.server.calls[: len(FIRST)] == FIRST)
        rig.service("t")
        await until(rig, lambda: ServiceKey("n", "t") in rig.again)
        leads = False
        await until(rig, lambda: rig.nodes._known is None)
    finally:
        task.cancel()


def test_every_kind_that_is_looked_at_or_written_has_its_place() -> None:
    paths = [kind.path(None) for kind in (NODE, POD, SECRET, CLAIM, VOLUME, DAEMON_SET)]
    assert paths == [
        "/api/v1/nodes",
        "/api/v1/pods",
        "/api/v1/secrets",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/persistentvolumes",
        "/apis/apps/v1/daemonsets",
    ]
    assert node_label("m") == "model.pagefleet.io/m"


async def test_pods_wait_for_the_adapters_on_their_nodes_too() -> None:
    rig = Rig()
    adapters, engine = [{"name": "sql", "uri": "hf://org/sql-lora"}], {"runtime": "vllm", "image": "v"}
    rig.service(engine=engine, adapters=adapters)
    await rig.turn()
    names = sorted(name for kind, _, name in rig.server.objects if kind == "DaemonSet")
    assert len(names) == 2 and names[1].startswith("sql-lora-")
    assert "adapter sql: " in rig.told(model={"adapters": adapters}, engine=engine)
    rig.service()
    written = [call for _ in range(4) for call in await rig.turn()]
    assert written.count("delete DaemonSet") == 1
