"""What a pass says about a service, and what it remembers of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.facts.observed import ChildKey, format_time
from tests.pagefleet_operator.shell.bench import KEY, Bench


def _told(bench: Bench) -> dict[str, Any]:
    bodies = (body for body in reversed(bench.server.bodies) if "conditions" in body.get("status", {}))
    status: dict[str, Any] = next(bodies)["status"]
    return status


def _conditions(bench: Bench) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in _told(bench)["conditions"]}


def _ready_of(bench: Bench) -> str:
    return str(_told(bench)["ready"])


def _deployment(bench: Bench, *, observed: int, reason: str = "NewReplicaSetAvailable") -> None:
    """The Deployment as its controller left it: generation 1, all its pods up to date."""
    live = dict(bench.cache.children(KEY)[ChildKey("Deployment", "s")])
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
    assert KEY in bench.engines.watched
    leaving = next(pod for pod in bench.cache.pods(KEY) if pod.draining)
    body = bench.server.objects[leaving.name]
    started = datetime.now(UTC) - timedelta(hours=1)
    body["metadata"]["annotations"][labels.DRAIN_STARTED] = format_time(started)
    body["metadata"]["resourceVersion"] = "3000"
    bench.cache.put("Pod", body)
    calls = await bench.passes()
    assert f"mark {leaving.name}" in calls
    assert "apply Deployment" in calls


async def test_pods_that_come_and_go_are_told_of_although_the_spec_cannot_be_read_any_more() -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
    await bench.passes()
    bench.service(version=bench.server.version + 1, model={"uri": 3})
    assert (await bench.passes())[-2:] == ["status", "event InvalidSpec"]
    assert (_conditions(bench)["Ready"]["status"], _ready_of(bench)) == ("True", "2/2")
    bench.cache.drop("Pod", "uid a")
    assert (await bench.passes())[-1] == "status"
    assert (_conditions(bench)["Ready"]["status"], _ready_of(bench)) == ("True", "1/2")
    bench.reconciler.forget_all()
    bench.cache.drop("Pod", "uid b")
    await bench.passes()
    assert (_conditions(bench)["Ready"]["status"], _ready_of(bench)) == ("False", "0/2")
    assert await bench.passes() == []


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


async def test_a_service_that_flaps_gets_no_more_than_a_burst_of_events() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    told = 0
    for turn in range(40):
        bench.pod("a", ready=turn % 2 == 0)
        told += sum(call.startswith("event") for call in await bench.passes())
    assert told == 20


async def test_every_condition_is_about_the_latest_generation_even_of_a_spec_that_cannot_be_read() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    for version, spec in ((1000, {"model": {"uri": "pkg://m"}}), (2000, {"model": {"uri": 3}})):
        bench.service(version=version, **spec)
        bench.server.objects["s"]["status"] = next(b["status"] for b in reversed(bench.server.bodies) if "status" in b)
        bench.cache.put(labels.KIND, bench.server.objects["s"])
        assert "status" in await bench.passes()
        status = next(
            body["status"] for body in reversed(bench.server.bodies) if "conditions" in body.get("status", {})
        )
        assert status["observedGeneration"] == version
        assert {condition["observedGeneration"] for condition in status["conditions"]} == {version}
        assert len(status["conditions"]) >= 2


async def test_a_container_that_is_being_created_is_looked_at_again_soon() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    bench.pod("a", ready=False)
    body = bench.server.objects["a"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(datetime.now(UTC))}
    body["status"] = {"conditions": [scheduled]}
    bench.cache.put("Pod", body)
    await bench.passes()
    assert (KEY, 2.0) in bench.again
