"""The order in which a pass acts, and what it does when the API server refuses."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.explanation import Explanation
from pagefleet_api.gpus import RESOURCE as GPU
from pagefleet_api.service import InferenceService
from pagefleet_api.sizing import gpu_types
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.facts.knowledge import GpuNodes, Knowledge
from pagefleet_operator.facts.observed import ChildKey, Sample, format_second
from tests.pagefleet_api.sizing import configs
from tests.pagefleet_operator.plan.build import load
from tests.pagefleet_operator.shell.bench import KEY, Bench


async def test_children_come_in_order_and_the_status_comes_last() -> None:
    bench = Bench()
    bench.service()
    assert await bench.passes() == ["apply ServiceAccount", "apply Service", "apply Deployment", "status"]


async def test_a_child_that_the_spec_no_longer_asks_for_is_removed_once() -> None:
    bench = Bench()
    bench.service(replicas=2)
    assert "apply PodDisruptionBudget" in await bench.passes()
    (key, live), *_ = [item for item in bench.cache.children(KEY).items() if item[0].kind == "PodDisruptionBudget"]
    managed = {"manager": labels.FIELD_MANAGER, "operation": "Apply", "fieldsV1": {}}
    meta = {**live["metadata"], "resourceVersion": "900", "managedFields": [managed]}
    bench.cache.put(key.kind, {**live, "metadata": meta})
    bench.service(version=1000, replicas=1)
    calls = await bench.passes(count=2)
    assert calls.count("delete PodDisruptionBudget") == 1
    assert bench.server.bodies[calls.index("delete PodDisruptionBudget") - len(calls)] == {**live, "metadata": meta}


async def test_pods_give_way_to_groups_a_step_at_a_time() -> None:
    bench = Bench()
    bench.service(replicas=3)
    await bench.passes()
    for number in range(3):
        bench.pod(f"p{number}")
    shared = {"runtime": "vllm", "image": "v", "device": "cuda", "parallelism": {"pipeline": 2}}
    asked = {"model": {"uri": "file:///m"}, "engine": shared, "replicas": 3, "rollout": {"maxSurge": 0}}
    bench.service(version=1000, **asked)
    calls = await bench.passes(count=2)
    assert [call for call in calls if call.partition(" ")[0] in {"resize", "delete"}] == ["resize Deployment"]
    live = {child.kind: body["spec"]["replicas"] for child, body in bench.cache.children(KEY).items() if "spec" in body
            and "replicas" in body["spec"]}  # fmt: skip
    assert live == {"Deployment": 1, "LeaderWorkerSet": 1}, "two pods make room for a group of two"
    assert (KEY, 2.0) in bench.again, "a group is missing: whether somebody refuses it is looked up soon"


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


async def test_who_leaves_a_fixed_service_is_chosen_by_samples_of_that_moment() -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
    now_s = time.monotonic()
    bench.engines.known = {"uid a": Sample(load(0), now_s - 9), "uid b": Sample(load(3), now_s - 9)}
    bench.engines.fresh = {"uid a": Sample(load(30), now_s), "uid b": Sample(load(2), now_s)}
    bench.service(version=1000, replicas=1)
    assert "drain b" in await bench.passes()


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
    assert bench.server.calls[-2:] == ["status", "event NotReady"]
    assert "exceeded quota" in str(bench.server.bodies[-2]["status"]["conditions"])


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
    assert bench.server.calls == ["status", "event NotReady"]
    assert "NameConflict" in str(bench.server.bodies[-2])


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
    assert bench.reconciler.explanation("n", "s") == Explanation(namespace="n", name="s")
    bench.cache.drop(labels.KIND, "u")
    assert await bench.passes() == []
    assert bench.engines.watched == {}
    assert bench.reconciler.explanation("n", "s") is None


async def test_fixed_services_are_sampled_calmly_and_autoscaled_ones_report_every_round() -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    assert bench.engines.watched[KEY] == (10.0, False)
    bench.service(version=1000, autoscaling={"maxReplicas": 3})
    await bench.passes()
    interval_s, matters = bench.engines.watched[KEY]
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
    found = bench.reconciler.explanation("n", "s")
    assert found is not None and found.next_steps is not None
    assert 1 <= len(found.decisions) <= 3
    assert "minReplicas is 1" in found.next_steps.down_held_by


async def test_a_follower_forgets_everything() -> None:
    bench = Bench()
    bench.service(autoscaling={"maxReplicas": 3})
    await bench.passes()
    bench.reconciler.forget_all()
    assert bench.reconciler.explanation("n", "s") is None
    assert bench.engines.watched == {}


async def test_a_recommendation_is_in_the_status_and_in_an_event_and_the_number_stays() -> None:
    bench = Bench()
    scaling = {"mode": "Recommend", "maxReplicas": 6}
    bench.service(replicas=1, autoscaling=scaling, engine={"maxNumSeqs": 8})
    await bench.passes()
    bench.pod("a")
    bench.engines.known = {"uid a": Sample(load(8).model_copy(update={"waiting": 12}), time.monotonic())}
    assert "event Recommended" in await bench.passes()
    (written,) = [
        body["status"]
        for body in bench.server.bodies
        if body.get("status", {}).get("targets") == "queue 12/4, kv 0/75 %"
    ]
    assert written["autoscaling"]["desiredReplicas"] == 3
    applied = [body for body in bench.server.bodies if body.get("kind") == "Deployment"]
    assert {body["spec"]["replicas"] for body in applied} == {1}


class TooLarge:
    """Stands in for what finds out about models: this one fits on no node."""

    async def about(self, service: InferenceService) -> Knowledge:
        l4 = gpu_types.named("L4", gpu_types.known())
        return Knowledge(facts=ModelFacts.read(configs.LLAMA_70B), gpus=(GpuNodes(l4, 1),))


async def test_no_pod_is_made_of_a_model_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.reconciler._observer, "_fitting", TooLarge())
    bench.service(capacityPolicy="Enforce", engine={"device": "cuda"})
    assert await bench.passes() == ["apply ServiceAccount", "apply Service", "status", "event NotReady"]
    conditions = {one["type"]: one for one in bench.server.bodies[-2]["status"]["conditions"]}
    assert conditions["Stalled"]["reason"] == conditions["Ready"]["reason"] == "TooLarge"
    bench.service(version=1000, capacityPolicy="Warn", engine={"device": "cuda"})
    assert "apply Deployment" in await bench.passes()


async def test_what_serves_goes_on_and_is_scaled_when_a_new_spec_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.service(replicas=2)
    await bench.passes()
    for name in ("a", "b"):
        bench.pod(name)
    monkeypatch.setattr(bench.reconciler._observer, "_fitting", TooLarge())
    bench.service(version=1000, replicas=3, capacityPolicy="Enforce", engine={"device": "cuda"})
    calls = await bench.passes()
    applied = bench.server.bodies[calls.index("apply Deployment") - len(calls)]
    assert applied["spec"]["replicas"] == 3
    (container,) = applied["spec"]["template"]["spec"]["containers"]
    assert GPU not in container.get("resources", {}).get("limits", {}), "they are of the earlier spec"


async def test_pods_that_do_not_tell_their_spec_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.service()
    await bench.passes()
    live = bench.cache.children(KEY)[ChildKey("Deployment", "s")]
    meta = {**live["metadata"], "annotations": {}, "resourceVersion": "900"}
    bench.cache.put("Deployment", {**live, "metadata": meta})
    monkeypatch.setattr(bench.reconciler._observer, "_fitting", TooLarge())
    bench.service(version=1000, replicas=2, capacityPolicy="Enforce", engine={"device": "cuda"})
    assert "apply Deployment" not in await bench.passes()


async def test_a_fixed_services_start_is_followed_until_its_engine_has_told_its_part() -> None:
    bench, now = Bench(), datetime.now(UTC)
    bench.service()

    def pod(version: int, *, ready: bool) -> None:
        second = format_second(now)
        meta: dict[str, Any] = {"namespace": "n", "name": "a", "uid": "a", "resourceVersion": str(version)}
        meta["creationTimestamp"] = second
        meta["labels"] = {labels.SERVICE: "s", labels.SERVING: labels.SERVING_TRUE}
        conditions = [
            {"type": kind, "status": "True" if good else "False", "lastTransitionTime": second}
            for kind, good in (("PodScheduled", True), ("Ready", ready))
        ]
        container = {"name": labels.CONTAINER, "state": {"running": {"startedAt": second}}, "started": ready}
        status = {"podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [container]}
        bench.cache.put("Pod", {"kind": "Pod", "metadata": meta, "status": status})

    pod(1, ready=False)
    await bench.passes()
    pod(2, ready=True)
    bench.engines.known["a"] = Sample(load(), time.monotonic())
    bench.again.clear()
    await bench.passes()
    interval_s, matters = bench.engines.watched[KEY]
    assert matters, "each round of samples brings a pass"
    assert (KEY, interval_s * 1.5) in bench.again


async def test_a_pod_behind_a_leader_that_is_being_created_is_looked_at_soon_too() -> None:
    bench = Bench()
    bench.service()
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_second(datetime.now(UTC))}
    meta = {"namespace": "n", "name": "s-0-1", "uid": "w", "resourceVersion": "1", "labels": {labels.GROUP_OF: "s"}}
    bench.cache.put("Pod", {"kind": "Pod", "metadata": meta, "status": {"conditions": [scheduled]}})
    await bench.passes()
    assert (KEY, 2.0) in bench.again
