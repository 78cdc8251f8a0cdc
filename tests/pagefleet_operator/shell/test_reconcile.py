"""The order in which a pass acts, and what it does when the API server refuses."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_operator import cluster as api
from pagefleet_operator.cache import ServiceKey, WatchCache
from pagefleet_operator.kinds import Kind
from pagefleet_operator.metrics import Metrics
from pagefleet_operator.news import News
from pagefleet_operator.observed import ChildKey, Pod, Sample, format_time
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.settings import Settings

_KEY = ServiceKey("n", "s")


class Server:
    """An API server that writes down what it is asked and answers as a real one would."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.refuses: dict[str, api.ApiError] = {}
        self.foreign: dict[str, Any] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.during: Callable[[str], None] = lambda _: None
        """Called with each write while it is under way."""

    def _write(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if call in self.refuses:
            raise self.refuses[call]
        self.calls.append(call)
        self.during(call)
        self.bodies.append(body)
        self.version += 1
        kept = self.objects.get(call.partition(" ")[2], {})
        meta = {"uid": f"uid {call}", "namespace": "n", **kept.get("metadata", {}), **body.get("metadata", {})}
        return {**kept, **body, "metadata": {**meta, "resourceVersion": str(self.version)}}

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return self._write(f"apply {manifest['kind']}", manifest)

    async def delete(self, kind: Kind, live: Mapping[str, Any]) -> None:
        self._write(f"delete {kind.name}", live)

    async def mark_pod(
        self, namespace: str, name: str, uid: str, *, pod_labels: Mapping[str, Any], annotations: Mapping[str, Any]
    ) -> dict[str, Any]:
        change = "+".join((*pod_labels.values(), *(key.rpartition("/")[2] for key in annotations)))
        kept = self.objects[name]["metadata"]
        merged = {
            **kept,
            "labels": {**kept["labels"], **pod_labels},
            "annotations": {**kept.get("annotations", {}), **annotations},
        }
        self.objects[name]["metadata"] = merged
        return self._write(f"mark {name}", {"kind": "Pod", "metadata": merged, "change": change})

    async def write_status(self, namespace: str, name: str, uid: str, status: Mapping[str, Any]) -> dict[str, Any]:
        return self._write("status", {**self.objects[name], "status": status})

    async def post_event(self, namespace: str, name: str, uid: str, note: News) -> None:
        self._write(f"event {note.reason}", {"metadata": {}})

    async def read(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        return self.foreign.get(kind.name)


class Engines:
    """A scraper without engines."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.watched: dict[ServiceKey, tuple[float, bool]] = {}
        self.known: dict[str, Sample] = {}

    def watch(self, key: ServiceKey, pods: Any, *, interval_s: float, matters: bool) -> None:
        self.watched[key] = (interval_s, matters)

    def forget(self, key: ServiceKey) -> None:
        self.watched.pop(key, None)

    def samples(self, key: ServiceKey) -> dict[str, Sample]:
        return self.known

    async def drain(self, pod: Pod) -> bool:
        self._calls.append(f"drain {pod.name}")
        return True

    async def undrain(self, pod: Pod) -> bool:
        self._calls.append(f"undrain {pod.name}")
        return True


class Bench:
    """A reconciler around which everything is in memory."""

    def __init__(self) -> None:
        self.server, self.cache, self.metrics = Server(), WatchCache(), Metrics()
        self.engines = Engines(self.server.calls)
        self.again: list[tuple[ServiceKey, float]] = []
        self.reconciler = Reconciler(
            Settings(),
            self.cache,
            self.server,  # type: ignore[arg-type]
            self.engines,  # type: ignore[arg-type]
            self.metrics,
            lambda key, delay_s: self.again.append((key, delay_s)),
        )

    def service(self, version: int = 1, **spec: Any) -> None:
        meta = {"namespace": "n", "name": "s", "uid": "u", "resourceVersion": str(version), "generation": version}
        whole = {"model": {"uri": "pkg://m"}, "replicas": 1, **spec}
        self.server.objects["s"] = {"kind": labels.KIND, "metadata": meta, "spec": whole}
        self.cache.put(labels.KIND, self.server.objects["s"])

    def pod(self, name: str, *, ready: bool = True) -> None:
        pod_labels = {labels.SERVICE: "s", labels.SERVING: labels.SERVING_TRUE}
        meta = {"namespace": "n", "name": name, "uid": f"uid {name}", "resourceVersion": "1", "labels": pod_labels}
        status = {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        body = {"kind": "Pod", "metadata": meta, "status": status}
        self.server.objects[name] = body
        self.cache.put("Pod", body)

    async def passes(self, count: int = 1) -> list[str]:
        """Calls of so many passes."""
        self.server.calls.clear()
        for _ in range(count):
            await self.reconciler.converge(_KEY)
        return list(self.server.calls)


async def test_children_come_in_order_and_the_status_comes_last() -> None:
    bench = Bench()
    bench.service()
    assert await bench.passes() == ["apply ServiceAccount", "apply Service", "apply Deployment", "status"]


async def test_a_pod_leaves_the_service_and_is_told_before_the_deployment_shrinks() -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
    bench.service(version=1000, replicas=1)
    calls = await bench.passes()
    steps = [call.partition(" ")[0] for call in calls if not call.startswith("status")]
    assert steps[:3] == ["mark", "drain", "event"]
    assert all(call != "apply Deployment" for call in calls[:3])


async def test_a_pass_that_does_not_see_its_own_patch_yet_takes_no_second_pod() -> None:
    bench = Bench()
    bench.service(replicas=3)
    await bench.passes()
    for name in ("a", "b", "c"):
        bench.pod(name)
    bench.service(version=1000, replicas=2)
    calls = await bench.passes(count=4)
    assert len([call for call in calls if call.startswith("mark")]) == 1


async def test_a_failed_patch_of_a_pod_keeps_the_deployment_as_it_is() -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
        bench.server.refuses[f"mark {name}"] = api.Unavailable("later")
    bench.service(version=1000, replicas=1)
    with pytest.raises(api.Unavailable):
        await bench.passes()
    assert bench.server.calls == []


async def test_a_refusal_is_reported_in_the_status_and_tried_again() -> None:
    bench = Bench()
    bench.service()
    bench.server.refuses["apply Deployment"] = api.Refused("exceeded quota: pods")
    with pytest.raises(api.Refused):
        await bench.passes()
    assert bench.server.calls[-1] == "status"
    assert "exceeded quota" in str(bench.server.bodies[-1]["status"]["conditions"])


async def test_a_terminating_namespace_is_told_apart_and_nothing_is_reported_there() -> None:
    bench = Bench()
    bench.service()
    bench.server.refuses["apply ServiceAccount"] = api.Terminating("being terminated")
    with pytest.raises(api.Terminating):
        await bench.passes()
    assert bench.server.calls == []


async def test_a_name_that_somebody_else_has_keeps_the_service_from_all_children() -> None:
    bench = Bench()
    bench.service()
    bench.server.foreign["Service"] = {"metadata": {"name": "s", "namespace": "n", "uid": "x"}}
    with pytest.raises(api.Refused):
        await bench.passes()
    assert bench.server.calls == ["status"]
    assert "NameConflict" in str(bench.server.bodies[-1])


async def test_our_own_child_that_the_cache_does_not_have_is_no_conflict() -> None:
    bench = Bench()
    bench.service()
    owners = [{"uid": "u", "controller": True}]
    bench.server.foreign["Service"] = {"metadata": {"name": "s", "namespace": "n", "ownerReferences": owners}}
    assert "apply Service" in await bench.passes()


async def test_an_object_that_cannot_be_read_gets_a_status_and_nothing_else_is_touched() -> None:
    bench = Bench()
    bench.service(model={"uri": 3})
    assert await bench.passes() == ["status", "event InvalidSpec"]
    assert "InvalidSpec" in str(bench.server.bodies[0])
    assert await bench.passes() == []


async def test_a_service_that_is_being_deleted_gets_no_children() -> None:
    bench = Bench()
    meta = {"namespace": "n", "name": "s", "uid": "u", "resourceVersion": "1", "deletionTimestamp": "now"}
    bench.cache.put(labels.KIND, {"kind": labels.KIND, "metadata": meta, "spec": {"model": {"uri": "pkg://m"}}})
    assert await bench.passes() == []
    assert bench.engines.watched == {}


async def test_a_service_that_is_gone_is_forgotten() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    assert bench.reconciler.decisions("n", "s") == ()
    bench.cache.drop(labels.KIND, "u")
    assert await bench.passes() == []
    assert bench.engines.watched == {}
    assert bench.reconciler.decisions("n", "s") is None


async def test_fixed_services_are_sampled_calmly_and_autoscaled_ones_report_every_round() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    assert bench.engines.watched[_KEY] == (10.0, False)
    bench.service(version=1000, autoscaling={"maxReplicas": 3})
    await bench.passes()
    interval_s, matters = bench.engines.watched[_KEY]
    assert matters
    assert interval_s < 10.0
    assert bench.again


async def test_an_event_that_cannot_be_posted_changes_nothing() -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
    bench.server.refuses["event Draining"] = api.Refused("no")
    bench.service(version=1000, replicas=1)
    assert any(call.startswith("drain") for call in await bench.passes())


async def test_the_trail_has_every_decision_once() -> None:
    bench = Bench()
    bench.service(autoscaling={"maxReplicas": 3})
    await bench.passes(count=5)
    trail = bench.reconciler.decisions("n", "s")
    assert trail is not None
    assert 1 <= len(trail) <= 3


async def test_a_follower_forgets_everything() -> None:
    bench = Bench()
    bench.service(autoscaling={"maxReplicas": 3})
    await bench.passes()
    bench.reconciler.forget_all()
    assert bench.reconciler.decisions("n", "s") is None
    assert bench.engines.watched == {}


def _conditions(bench: Bench) -> dict[str, dict[str, Any]]:
    status = next(body for body in reversed(bench.server.bodies) if "conditions" in body.get("status", {}))["status"]
    return {condition["type"]: condition for condition in status["conditions"]}


def _deployment(bench: Bench, *, observed: int, reason: str = "NewReplicaSetAvailable") -> None:
    """The Deployment as its controller left it: generation 1, all its pods up to date."""
    live = dict(bench.cache.children(_KEY)[ChildKey("Deployment", "s")])
    progressing = {"type": "Progressing", "status": "True", "reason": reason, "message": "m"}
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
    live["status"] = {**counts, "observedGeneration": observed, "conditions": [progressing]}
    live["metadata"] = {**live["metadata"], "generation": 1, "resourceVersion": "500"}
    bench.server.objects["Deployment"] = live
    bench.cache.put("Deployment", live)


@pytest.mark.parametrize("reason", ["NewReplicaSetAvailable", "ProgressDeadlineExceeded"])
async def test_the_first_status_after_a_change_of_the_template_is_about_the_new_one(reason: str) -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    bench.pod("a")
    _deployment(bench, observed=1, reason=reason)
    await bench.passes()
    assert ("Stalled" in _conditions(bench)) == (reason == "ProgressDeadlineExceeded")
    assert "Reconciling" not in _conditions(bench)

    def controller_lags(call: str) -> None:
        if call == "apply Deployment":
            bench.server.objects["Deployment"]["metadata"]["generation"] = 2

    bench.server.during = controller_lags
    bench.service(version=1000, engine={"maxNumSeqs": 3})
    assert "status" in await bench.passes()
    assert "Reconciling" in _conditions(bench)
    assert "Stalled" not in _conditions(bench)


async def test_a_drain_ends_although_the_spec_cannot_be_read_any_more() -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
    bench.service(version=1000, replicas=1)
    assert any(call.startswith("drain") for call in await bench.passes())
    bench.service(version=2000, model={"uri": 3})
    calls = await bench.passes()
    assert "status" in calls
    assert _conditions(bench)["Ready"]["reason"] == "InvalidSpec"
    assert _KEY in bench.engines.watched
    leaving = next(pod for pod in bench.cache.pods(_KEY) if pod.draining)
    body = bench.server.objects[leaving.name]
    started = datetime.now(UTC) - timedelta(hours=1)
    body["metadata"]["annotations"][labels.DRAIN_STARTED] = format_time(started)
    body["metadata"]["resourceVersion"] = "3000"
    bench.cache.put("Pod", body)
    calls = await bench.passes()
    assert f"mark {leaving.name}" in calls
    assert "apply Deployment" in calls


async def test_a_new_service_of_the_same_name_is_not_run_by_the_spec_of_the_old_one() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    bench.cache.drop(labels.KIND, "u")
    body = bench.server.objects["s"]
    body["metadata"] = {**body["metadata"], "uid": "u2", "resourceVersion": "1000"}
    body["spec"] = {"model": {"uri": 3}}
    bench.cache.put(labels.KIND, body)
    assert await bench.passes() == ["status", "event InvalidSpec"]
    assert bench.engines.watched == {}


async def test_a_pass_during_which_the_lead_is_lost_leaves_no_series_behind() -> None:
    bench = Bench()
    bench.service()
    bench.server.during = lambda _: bench.reconciler.forget_all()
    await bench.passes()
    assert "inference_service" not in bench.metrics.exposition().decode()


async def test_a_service_with_a_long_name_is_labelled_as_its_pods_are() -> None:
    bench = Bench()
    name = "x" * 100
    meta = {"namespace": "n", "name": name, "uid": "u", "resourceVersion": "1", "generation": 1}
    bench.server.objects[name] = {"kind": labels.KIND, "metadata": meta, "spec": {"model": {"uri": "pkg://m"}}}
    bench.cache.put(labels.KIND, bench.server.objects[name])
    await bench.reconciler.converge(ServiceKey("n", name))
    text = bench.metrics.exposition().decode()
    assert f'inference_service="{labels.child_name(name)}"' in text
    assert f'inference_service="{name}"' not in text
    bench.reconciler.forget(ServiceKey("n", name))
    assert "inference_service" not in bench.metrics.exposition().decode()


async def test_children_of_an_earlier_service_of_this_name_are_waited_for() -> None:
    bench = Bench()
    bench.service()
    owner = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": "s", "uid": "old", "controller": True}
    meta = {"name": "s", "namespace": "n", "uid": "x", "ownerReferences": [owner]}
    bench.server.foreign["Deployment"] = {"kind": "Deployment", "metadata": meta}
    assert "apply Deployment" not in await bench.passes()
    assert _conditions(bench)["Reconciling"]["reason"] == "PredecessorLeaving"
    assert "Stalled" not in _conditions(bench)
    assert bench.again[-1][1] <= 2.0
    bench.server.foreign.clear()
    assert "apply Deployment" in await bench.passes()
