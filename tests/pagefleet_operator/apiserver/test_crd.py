"""The CRD as a real API server takes it."""

import copy
from typing import Any

import pytest

from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_model_source import REFUSED
from tests.pagefleet_api.test_model_uri import GOOD
from tests.pagefleet_api.test_values import NO_QUANTITY, NO_URI, WRONG
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually
from tests.pagefleet_operator.apiserver.operators import EXAMPLES, example, service, with_field

pytestmark = pytest.mark.apiserver

_SCALING = {"maxReplicas": 3}
_NIGHT = {"name": "night", "start": "22:00", "end": "06:00"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_accepted_under_strict_validation(api: Api, namespace: str, name: str) -> None:
    body = example(name, namespace)
    created = api.create("inferenceservices", body, strict=True)
    assert created["spec"]["replicas"] == body["spec"].get("replicas", 1)


def test_the_crd_is_established_without_complaints_about_its_schema(api: Api) -> None:
    crd = api.get("customresourcedefinitions", None, "inferenceservices.pagefleet.io")
    assert crd is not None
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


def test_an_unknown_field_is_refused_by_name_under_strict_validation(api: Api, namespace: str) -> None:
    with pytest.raises(ApiRefusal, match=r'unknown field "spec.engine.maxNumSeq"'):
        api.create("inferenceservices", with_field(namespace, "engine.maxNumSeq", 3), strict=True)


def test_an_unknown_field_is_pruned_otherwise(api: Api, namespace: str) -> None:
    created = api.create("inferenceservices", with_field(namespace, "engine.maxNumSeq", 3))
    assert "maxNumSeq" not in created["spec"]["engine"]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("resources.gpu", {"count": 1}, "engine.device cpu takes no GPU"),
        (
            "resources",
            {"requests": {"cpu": 1, "memory": "2Gi"}, "limits": {"cpu": "1000m", "memory": "2G"}},
            "resources.requests.memory 2Gi is above resources.limits.memory 2G; lower the request or raise the limit",
        ),
        ("resources", {"requests": {"a.b/c": 3}, "limits": {"a.b/c": 2}}, "requests.a.b/c 3 is above"),
        ("resources.requests", {f"a.b/{number}": 1 for number in range(33)}, "resources.requests"),
        ("engine", {"device": "cuda", "parallelism": {"tensor": 0}}, "engine.parallelism.tensor"),
        ("resources.gpu", {"resourceName": "gpu"}, "resources.gpu.resourceName"),
        ("engine.kvCache", {}, "engine.kvCache.size is required"),
        (
            "autoscaling",
            {"minReplicas": 4, "maxReplicas": 3},
            "spec.autoscaling.minReplicas: Forbidden: minReplicas 4 must not be above maxReplicas 3; lower",
        ),
        ("autoscaling", {"minReplicas": 0, "maxReplicas": 3}, "minReplicas 0 is not available"),
        ("autoscaling", {}, "autoscaling.maxReplicas"),
        (
            "autoscaling",
            {**_SCALING, "metrics": [{"type": "KVCacheUsage", "target": {"averageValue": "3"}}]},
            "KVCacheUsage takes target.averageUtilization",
        ),
        (
            "autoscaling",
            {**_SCALING, "metrics": [{"type": "KVCacheUsage", "target": {"averageUtilization": 101}}]},
            "KVCacheUsage never passes 100 percent",
        ),
        (
            "autoscaling",
            {**_SCALING, "behavior": {"scaleUp": {"tolerance": "11"}}},
            "tolerance: Forbidden: must be at least 0",
        ),
        ("autoscaling", {**_SCALING, "behavior": {"scaleUp": {"policies": []}}}, "policies"),
        ("autoscaling", {**_SCALING, "mode": "External"}, "give bounds, metrics and behavior there"),
        ("autoscaling", {"mode": "External", "behavior": {}}, "give bounds, metrics and behavior there"),
        (
            "autoscaling",
            {**_SCALING, "metrics": [{"type": "TimeToFirstToken", "target": {"averageValue": "1"}}]},
            "TimeToFirstToken takes target.p95",
        ),
        (
            "autoscaling",
            {**_SCALING, "schedules": [{**_NIGHT, "minReplicas": 4}]},
            "night asks for 4 replicas, more than autoscaling.maxReplicas 3; lower its",
        ),
        (
            "autoscaling",
            {**_SCALING, "schedules": [{**_NIGHT, "minReplicas": 2, "maxReplicas": 1}]},
            "spec.autoscaling.schedules[0].minReplicas: Forbidden: minReplicas 2 must not be above maxReplicas 1",
        ),
        ("autoscaling", {**_SCALING, "schedules": [_NIGHT]}, "give its minReplicas, maxReplicas or both"),
        (
            "autoscaling",
            {**_SCALING, "metrics": [{"type": "WaitingRequests", "target": {"averageValue": "0"}}]},
            "averageValue: Forbidden: must be at least 1m",
        ),
        ("rollout", {"maxSurge": 0, "maxUnavailable": "0%"}, "must not both be 0"),
        (
            "rollout",
            {"analysis": {"maxTTFTRegression": "-0.1"}},
            "analysis.maxTTFTRegression: Forbidden: must be at least 0",
        ),
        (
            "rollout",
            {"analysis": {"maxITLRegression": 11}},
            "maxITLRegression: Forbidden: must be at least 0 and at most 10",
        ),
        ("rollout", {"analysis": {"maxErrorRate": "2"}}, "maxErrorRate: Forbidden: must be at least 0 and at most 1"),
        ("rollout", {"analysis": {"trafficPercent": 51}}, "rollout.analysis.trafficPercent"),
        ("replicas", -1, "spec.replicas"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field_and_the_way_out(
    api: Api, namespace: str, path: str, value: Any, words: str
) -> None:
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", with_field(namespace, path, value))
    assert refusal.value.status == 422
    assert words in str(refusal.value)
    assert '"object"' not in str(refusal.value), "a type is no value"


@pytest.mark.parametrize(("spec", "field", "value", "words"), [*WRONG, *NO_QUANTITY])
def test_a_single_value_is_refused_with_its_field_itself_and_the_way_out(
    api: Api, namespace: str, spec: Json, field: str, value: str, words: str
) -> None:
    said = _refusal(api, namespace, spec)
    assert f"spec.{field}: Forbidden: {words}" in said
    assert f'; it is "{value}"' in said


@pytest.mark.parametrize(("spec", "field", "value", "words"), NO_URI)
def test_what_is_no_models_uri_is_said_before_what_can_be(
    api: Api, namespace: str, spec: Json, field: str, value: str, words: str
) -> None:
    assert f'spec.{field}: Forbidden: "{value}" {words}' in _refusal(api, namespace, spec)


def _refusal(api: Api, namespace: str, spec: Json) -> str:
    body = service(namespace)
    body["spec"] |= spec
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", body)
    assert refusal.value.status == 422
    return str(refusal.value)


@pytest.mark.parametrize(("model", "words"), REFUSED)
def test_a_model_that_cannot_be_had_is_refused(api: Api, namespace: str, model: Json, words: str) -> None:
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", with_field(namespace, "model", model))
    assert refusal.value.status == 422
    assert words in str(refusal.value)


@pytest.mark.parametrize("uri", GOOD)
def test_every_form_of_a_models_uri_is_accepted(api: Api, namespace: str, uri: str) -> None:
    api.create("inferenceservices", with_field(namespace, "model.uri", uri), strict=True)


def test_a_host_cache_is_less_than_the_memory_that_it_is_a_part_of(api: Api, namespace: str) -> None:
    engine = {"runtime": "vllm", "image": "v", "device": "cuda", "kvCache": {"hostOffload": "8Gi"}}
    body = with_field(namespace, "engine", engine)
    body["spec"] |= {"model": {"uri": "file:///m"}, "resources": {"limits": {"memory": "8G"}}}
    words = "engine.kvCache.hostOffload 8Gi must be below resources.limits.memory 8G, which it is a part of"
    with pytest.raises(ApiRefusal, match=words):
        api.create("inferenceservices", body)
    with pytest.raises(InvalidService, match=words):
        InferenceService.parse(body)
    body["spec"]["resources"] = {"limits": {"memory": "9Gi"}}
    api.create("inferenceservices", body, strict=True)


@pytest.mark.parametrize(
    ("tensor", "resources", "words"),
    [
        (4, {"gpu": {"count": 2}}, "must be engine.parallelism.tensor"),
        (1, {"gpu": {"count": 0}}, "must be engine.parallelism.tensor"),
        (1, {"limits": {"nvidia.com/gpu": 1}}, "nvidia.com/gpu must not be in resources.limits"),
        (
            1,
            {"gpu": {"resourceName": "amd.com/gpu"}, "requests": {"amd.com/gpu": 1}},
            "amd.com/gpu must not be in resources.limits",
        ),
    ],
)
def test_gpus_that_do_not_agree_are_refused_with_their_numbers(
    api: Api, namespace: str, tensor: int, resources: Json, words: str
) -> None:
    body = with_field(namespace, "engine", {"device": "cuda", "parallelism": {"tensor": tensor}})
    body["spec"]["resources"] = resources
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", body)
    assert refusal.value.status == 422
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "given", "kept"),
    [
        ("replicas", 0, 0),
        ("replicas", None, 1),
        ("replicas", 1, 1),
        ("autoscaling", _SCALING, 1),
        ("autoscaling", {**_SCALING, "minReplicas": None}, 1),
        ("autoscaling", {**_SCALING, "minReplicas": 2}, 2),
    ],
)
def test_a_zero_stays_and_what_is_absent_or_null_becomes_the_default(
    api: Api, namespace: str, path: str, given: Any, kept: int
) -> None:
    stored = api.create("inferenceservices", with_field(namespace, path, given))
    spec = InferenceService.parse(stored).spec
    assert (spec.replicas if spec.autoscaling is None else spec.autoscaling.min_replicas) == kept


def test_the_scale_subresource_reads_and_writes_replicas(api: Api, namespace: str) -> None:
    api.create("inferenceservices", service(namespace))
    scale = api.call("GET", api.path("inferenceservices", namespace, "s") + "/scale")
    assert scale["spec"]["replicas"] == 1
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 4}}, "scale")
    live = api.get("inferenceservices", namespace, "s")
    assert live is not None
    assert live["spec"]["replicas"] == 4


def test_the_columns_that_kubectl_prints_are_there(api: Api, namespace: str) -> None:
    crd = api.get("customresourcedefinitions", None, "inferenceservices.pagefleet.io")
    assert crd is not None
    columns = [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["Model", "Ready", "Replicas", "Targets", "Min", "Max", "GPU", "URL", "Age"]


def test_a_stricter_version_blocks_neither_edits_elsewhere_nor_deletion(api: Api, namespace: str) -> None:
    name = "inferenceservices.pagefleet.io"
    api.create("inferenceservices", service(namespace))
    crd = api.get("customresourcedefinitions", None, name) or {}
    kept, stricter = crd["spec"]["versions"], copy.deepcopy(crd["spec"]["versions"])
    engine = stricter[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["engine"]
    engine.setdefault("x-kubernetes-validations", []).append({"rule": "self.maxNumSeqs > 100", "message": "stricter"})
    try:
        api.merge("customresourcedefinitions", None, name, {"spec": {"versions": stricter}})
        eventually(lambda: _is_refused(api, with_field(namespace, "engine.maxNumSeqs", 9)), "the new rule holds")
        api.merge("inferenceservices", namespace, "s", {"metadata": {"labels": {"team": "a"}}, "spec": {"replicas": 2}})
        with pytest.raises(ApiRefusal, match="stricter"):
            api.merge("inferenceservices", namespace, "s", {"spec": {"engine": {"maxNumSeqs": 9}}})
        api.delete("inferenceservices", namespace, "s")
        eventually(lambda: api.get("inferenceservices", namespace, "s") is None, "it is gone")
    finally:
        api.merge("customresourcedefinitions", None, name, {"spec": {"versions": kept}})
        eventually(lambda: not _is_refused(api, service(namespace, "again")), "the old rules hold again")


def _is_refused(api: Api, body: Json) -> bool:
    """A dry run: nothing is kept of it."""
    body["metadata"]["name"] = "trial"
    try:
        api.call("POST", api.path("inferenceservices", body["metadata"]["namespace"]) + "?dryRun=All", body)
    except ApiRefusal:
        return True
    return False


@pytest.mark.parametrize(
    ("adapter", "model", "engine", "words"),
    [
        ({"name": "NAME"}, {}, {}, "s is the model's own name for clients (model.servedName)"),
        ({"name": "m"}, {"servedName": "m"}, {}, "m is the model's own name for clients"),
        ({"name": "a=b"}, {}, {}, "spec.model.adapters[0].name"),
        ({"rank": 0}, {}, {}, "spec.model.adapters[0].rank"),
        ({}, {}, {"runtime": "tensorrt-llm"}, "model.adapters is not available with engine.runtime tensorrt-llm: its"),
        ({}, {}, {"parallelism": {"pipeline": 2}, "device": "cuda"}, "model.cache.mode None is not available with"),
    ],
)
def test_an_adapter_that_cannot_be_served_is_refused(
    api: Api, namespace: str, adapter: Json, model: Json, engine: Json, words: str
) -> None:
    body = service(namespace)
    given = {"name": "sql", "uri": "hf://org/sql-lora", **adapter}
    given["name"] = body["metadata"]["name"] if given["name"] == "NAME" else given["name"]
    body["spec"] |= {"model": {"uri": "file:///m", **model, "adapters": [given]}}
    body["spec"]["engine"] = {"runtime": "vllm", "image": "v", **engine}
    with pytest.raises(ApiRefusal) as refusal:
        api.create("inferenceservices", body)
    assert refusal.value.status == 422
    assert words in str(refusal.value)


def test_adapters_are_a_list_by_their_names(api: Api, namespace: str) -> None:
    body = service(namespace)
    adapters = [{"name": name, "uri": "pvc://trained/a"} for name in ("a", "b", "a")]
    body["spec"] |= {"model": {"uri": "file:///m", "adapters": adapters}, "engine": {"runtime": "vllm", "image": "v"}}
    with pytest.raises(ApiRefusal, match="Duplicate value"):
        api.create("inferenceservices", body)
    body["spec"]["model"]["adapters"] = [{**each, "name": f"a{place}"} for place, each in enumerate(adapters)]
    api.create("inferenceservices", body, strict=True)
