"""Replicas that are groups of pods, under an API server with and without LWS' real CRD."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_api import labels
from tests.pagefleet_operator.apiserver import lws
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver

ENGINE = {"runtime": "vllm", "image": "vllm:1", "device": "cuda", "parallelism": {"tensor": 2, "pipeline": 2}}


def body(namespace: str, **engine: Any) -> Json:
    made = service(namespace, "s", model={"uri": "file:///m"}, engine={**ENGINE, **engine})
    made["spec"]["replicas"] = 2
    return made


def condition(api: Api, namespace: str, kind: str) -> Json:
    status = (api.get("inferenceservices", namespace, "s") or {}).get("status") or {}
    return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})


def test_a_group_set_is_made_once_its_kind_is_there_and_not_written_again(
    api: Api, namespace: str, start: Start
) -> None:
    lws.remove(api)
    operator = start(groups_look_s=0.3).ready()
    api.create("inferenceservices", body(namespace), strict=True)
    reason = "LeaderWorkerSetMissing"
    eventually(lambda: condition(api, namespace, "Ready").get("reason") == reason, "the missing CRD is told")
    assert "install LWS" in condition(api, namespace, "Ready")["message"]
    assert condition(api, namespace, "Stalled")["reason"] == reason
    lws.install(api)
    eventually(lambda: len(lws.sets(api, namespace)) == 1, "the LeaderWorkerSet is made", 30)
    (made,) = lws.sets(api, namespace)
    assert made["metadata"]["name"] == labels.group_set_name("s")
    assert (made["spec"]["replicas"], made["spec"]["leaderWorkerTemplate"]["size"]) == (2, 2)
    eventually(lambda: condition(api, namespace, "Ready").get("reason") == "Starting", "pods are awaited")

    before = operator.quiet()
    api.merge("inferenceservices", namespace, "s", {"metadata": {"labels": {"seen": "again"}}})
    never(lambda: operator.writes() != before, "nothing changed, and something was written", 1.5)
    assert not [line for line in operator.log() if line["event"] in {"pass_failed", "pass_crashed"}]


def test_our_fields_of_a_group_set_are_repaired(api: Api, namespace: str, start: Start) -> None:
    lws.install(api)
    start(groups_look_s=0.3).ready()
    api.create("inferenceservices", body(namespace), strict=True)
    name = labels.group_set_name("s")
    eventually(lambda: len(lws.sets(api, namespace)) == 1, "the LeaderWorkerSet is made")
    api.merge("leaderworkersets", namespace, name, {"spec": {"replicas": 7}})
    eventually(lambda: lws.sets(api, namespace)[0]["spec"]["replicas"] == 2, "its number is ours again")


def test_one_kind_of_workload_follows_the_other(api: Api, namespace: str, start: Start) -> None:
    lws.install(api)
    start(groups_look_s=0.3).ready()
    api.create("inferenceservices", body(namespace, parallelism={"tensor": 2}), strict=True)
    eventually(lambda: len(api.list("deployments", namespace)) == 1, "the Deployment is made")
    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": ENGINE}})
    eventually(lambda: len(lws.sets(api, namespace)) == 1, "the LeaderWorkerSet is made beside it")
    never(lambda: not api.list("deployments", namespace), "the Deployment went before a group served", 2)
    assert [each["spec"]["replicas"] for each in lws.sets(api, namespace)] == [1], "one group more than are wanted"
    api.merge("inferenceservices", namespace, "s", {"spec": {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}})
    eventually(lambda: api.list("deployments", namespace)[0]["spec"]["replicas"] == 1, "one pod gives way")
    api.merge("inferenceservices", namespace, "s", {"spec": {"rollout": {"maxUnavailable": 2}}})
    eventually(lambda: not api.list("deployments", namespace), "the Deployment goes where none need be left")


def test_why_groups_are_not_made_is_told_by_the_sets_events_and_that_it_lasts(
    api: Api, namespace: str, start: Start
) -> None:
    """Nobody makes the set's pods here, so its controller's word is ours."""
    lws.install(api)
    start(groups_look_s=0.3).ready()
    wanted = body(namespace)
    wanted["spec"]["rollout"] = {"progressDeadlineSeconds": 4}
    api.create("inferenceservices", wanted, strict=True)
    eventually(lambda: len(lws.sets(api, namespace)) == 1, "the LeaderWorkerSet is made")
    name = labels.group_set_name("s")
    words = f'pods "{name}-0" is forbidden: exceeded quota: few, requested: pods=1'
    about = {"kind": "StatefulSet", "apiVersion": "apps/v1", "namespace": namespace, "name": name}
    event = {
        "metadata": {"name": "refused", "namespace": namespace},
        "regarding": about,
        "reason": "FailedCreate",
        "note": f"create Pod {name}-0 in StatefulSet {name} failed error: {words}",
        "type": "Warning",
        "action": "Create",
        "reportingController": "statefulset-controller",
        "reportingInstance": "statefulset-controller",
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    api.create("events", {"apiVersion": "events.k8s.io/v1", "kind": "Event", **event})
    eventually(lambda: condition(api, namespace, "Ready").get("reason") == "QuotaExceeded", "the quota is told", 15)
    assert condition(api, namespace, "Ready")["message"] == "exceeded quota: few, requested: pods=1"
    late = "ProgressDeadlineExceeded"
    eventually(lambda: condition(api, namespace, "Stalled").get("reason") == late, "and that it lasts", 30)
    assert "0 groups of the latest template were made" in condition(api, namespace, "Stalled")["message"]


@pytest.mark.parametrize(
    ("engine", "spec", "words"),
    [
        ({"runtime": "tgi"}, {}, "engine.parallelism.pipeline 2 is not available with engine.runtime tgi"),
        ({"runtime": "pagefleet"}, {}, "engine.parallelism.pipeline 2 is not available with engine.runtime pagefleet"),
        ({}, {"rollout": {"analysis": {}}}, "rollout.analysis is not available with engine.parallelism.pipeline"),
        ({}, {"model": {"uri": "hf://o/n"}}, "model.cache.mode None is not available with engine.parallelism.pipeline"),
        (
            {},
            {"resources": {"gpu": {"count": 2}}},
            "count 2 must be engine.parallelism.tensor 2 times pipeline 2",
        ),
        ({"device": "cpu", "kvCache": {"size": "1Gi"}}, {}, "engine.device cpu takes no GPU"),
    ],
)
def test_what_groups_cannot_be_is_refused(api: Api, namespace: str, engine: Json, spec: Json, words: str) -> None:
    wanted = body(namespace, **engine)
    wanted["spec"] |= spec
    with pytest.raises(ApiRefusal) as refused:
        api.create("inferenceservices", wanted, strict=True)
    assert words in str(refused.value)
