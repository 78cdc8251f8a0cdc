"""podTemplate against the API server: its own strategic merge patch on a Deployment must give what we render."""

import json
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagefleet_api import labels
from pagefleet_api.pod_template import checked
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.apiserver import api_errors
from pagefleet_operator.plan.convergence import up_to_date
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json
from tests.pagefleet_operator.apiserver.overlays import OVERLAYS, REFUSED

pytestmark = pytest.mark.apiserver

_CHOICES = render.Choices(replicas=0, wanted=0, image="engine:1", fetch_image="f", max_surge=1, max_unavailable=0)
_ENGINE = {
    "device": "cuda",
    "parallelism": {"tensor": 2},
    "chatTemplate": {"configMapKeyRef": {"name": "c", "key": "k"}},
    "apiKeysSecretRef": {"name": "keys"},
}


def _rendered(namespace: str, overlay: Json | None) -> Json:
    spec = {"model": {"uri": "pkg://m"}, "engine": _ENGINE}
    if overlay is not None:
        spec["podTemplate"] = overlay
    meta = {"name": "s", "namespace": namespace, "uid": "u"}
    children = render.manifests(InferenceService.parse({"metadata": meta, "spec": spec}), _CHOICES)
    (deployment,) = [child for child in children if child["kind"] == "Deployment"]
    del deployment["metadata"]["ownerReferences"]
    return deployment


def _template(answer: Json) -> Json:
    """Its template without what only ours has."""
    template: Json = answer["spec"]["template"]
    notes = template["metadata"].get("annotations", {})
    notes.pop("kubectl.kubernetes.io/default-container", None)
    if not notes:
        template["metadata"].pop("annotations", None)
    return template


def _outcome(api: Api, method: str, path: str, body: Json, content_type: str, query: str = "") -> Json | str:
    try:
        return _template(api.call(method, f"{path}?dryRun=All{query}", body, content_type))
    except ApiRefusal as refusal:
        assert refusal.status in {400, 422, 500}, str(refusal)
        return "refused"


def _compare(api: Api, namespace: str, overlay: Json) -> None:
    """What the API server merges, against what it makes of our merging."""
    path, patch = api.path("deployments", namespace), {"spec": {"template": overlay}}
    merged_there = _outcome(api, "PATCH", f"{path}/s", patch, "application/strategic-merge-patch+json")
    ours = _rendered(namespace, overlay)
    ours["metadata"]["name"] = "other"
    assert _outcome(api, "POST", path, ours, "application/json") == merged_there


@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_overlay_is_merged_as_the_api_server_merges_it(api: Api, shared_namespace: str, name: str) -> None:
    overlay = checked(OVERLAYS[name])
    _compare(api, shared_namespace, overlay)
    applied = _rendered(shared_namespace, overlay)
    live = _apply(api, shared_namespace, applied)
    assert up_to_date(applied, live), "it would be written again in every pass"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_overlay_that_makes_no_pod_is_refused_in_the_api_servers_words(
    api: Api, shared_namespace: str, name: str
) -> None:
    overlay, words = REFUSED[name]
    _compare(api, shared_namespace, checked(overlay))
    with pytest.raises(ApiRefusal) as refusal:
        _apply(api, shared_namespace, _rendered(shared_namespace, overlay))
    assert words in str(refusal.value)
    answer = json.dumps({"message": str(refusal.value)}).encode()
    assert isinstance(api_errors.answer_error(refusal.value.status, answer, ""), api_errors.Refused), (
        "the user must act"
    )


TOLERATIONS: tuple[Json, ...] = (
    {},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": ""},
    {"operator": "Equal"},
    {"key": "a"},
    {"key": "a", "operator": ""},
    {"key": "a", "operator": "Nope"},
    {"key": "a", "effect": "Zap"},
    {"key": "a", "foo": 1},
    {"key": "a", "value": None},
    {"key": 1},
    {"key": "a b"},
    {"key": "-a"},
    {"key": "A.b_c-d"},
    {"key": "A.b/c"},
    {"key": "a..b/c"},
    {"key": "a/b/c"},
    {"key": "a/"},
    {"key": "/a"},
    {"key": "a" * 63},
    {"key": "a" * 64},
    {"key": f"{'a.' * 126}a/b"},
    {"key": f"{'a.' * 127}a/b"},
    {"key": f"{'a' * 64}.b/c"},
    {"key": "a", "value": "b.C_d-e"},
    {"key": "a", "value": "b c"},
    {"key": "a", "value": "v" * 63},
    {"key": "a", "value": "v" * 64},
    {"key": "a", "operator": "Exists", "value": "b"},
    {"key": "a", "operator": "Exists", "value": ""},
    {"key": "a", "tolerationSeconds": 1},
    {"key": "a", "effect": "NoExecute", "tolerationSeconds": -1},
    {"key": "a", "effect": "NoExecute", "tolerationSeconds": "1"},
    {"key": "a", "effect": "NoExecute", "tolerationSeconds": True},
    {"key": "a", "effect": "NoExecute", "tolerationSeconds": 2**63 - 1},
)


@pytest.mark.parametrize("item", TOLERATIONS, ids=str)
def test_a_toleration_is_taken_where_the_api_server_takes_it(api: Api, shared_namespace: str, item: Json) -> None:
    """It may go into an object that others' pods wait for."""
    try:
        taken = bool(checked({"spec": {"tolerations": [item]}}))
    except ValueError:
        taken = False
    deployment = _rendered(shared_namespace, None)
    deployment["metadata"]["name"] = "tolerant"
    deployment["spec"]["template"]["spec"]["tolerations"] = [item]
    path = api.path("deployments", shared_namespace, "tolerant")
    outcome = _outcome(api, "PATCH", path, deployment, "application/apply-patch+yaml", "&fieldManager=pagefleet")
    assert taken == (outcome != "refused"), outcome


def _apply(api: Api, namespace: str, deployment: Json) -> Json:
    """As the operator does."""
    deployment["metadata"]["name"] = "applied"
    path = api.path("deployments", namespace, "applied")
    query = f"?fieldManager={labels.FIELD_MANAGER}&force=true"
    return api.call("PATCH", path + query, deployment, "application/apply-patch+yaml")


def _named(key: str, *names: Any) -> st.SearchStrategy[Json]:
    return st.sampled_from(names).map(lambda name: {key: name})


def _patched(base: st.SearchStrategy[Json], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    """An item with some fields, or its deletion."""
    more = st.fixed_dictionaries({}, optional=fields)
    whole = st.tuples(base, more).map(lambda pair: {**pair[0], **pair[1]})
    return whole | base.map(lambda item: {**item, "$patch": "delete"})


_ENV = st.lists(_patched(_named("name", "NCCL_NVLS_ENABLE", "A", "B", "C"), value=st.sampled_from(["0", "1"])))
_MOUNTS = st.lists(
    _patched(_named("mountPath", "/tmp", "/dev/shm", "/a", "/b"), name=st.sampled_from(["tmp", "shm", "v"]))
)
_CONTEXT = st.fixed_dictionaries(
    {},
    optional={
        "runAsUser": st.none() | st.just(7),
        "capabilities": st.none() | st.just({"add": ["X"]}) | st.just({"$patch": "replace", "drop": ["ALL"]}),
        "$patch": st.sampled_from(["replace", "delete"]),
    },
)
_ENGINE_PATCH = st.fixed_dictionaries(
    {"name": st.just("engine")},
    optional={
        "env": _ENV,
        "volumeMounts": _MOUNTS,
        "securityContext": _CONTEXT,
        "startupProbe": st.fixed_dictionaries({}, optional={"failureThreshold": st.none() | st.just(9)}),
        "imagePullPolicy": st.none() | st.just("Always"),
    },
)
_SIDECAR = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"]), "image": st.just("i")},
    optional={"securityContext": st.just({"runAsUser": 1})},
)
_NAME = itemgetter("name")
"""A name that comes twice is refused."""
_VOLUMES = st.lists(
    _patched(
        _named("name", "tmp", "shm", "v", "w"), emptyDir=st.just({}) | st.just({"medium": None, "sizeLimit": "1Gi"})
    )
    | st.just({"name": "tmp", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}})
)
_SPREAD = st.lists(
    st.just({"$patch": "replace"})
    | _patched(_named("topologyKey", "kubernetes.io/hostname", "zone"), maxSkew=st.integers(1, 2))
)
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.just({"a": "b"}) | st.none(),
        "tolerations": st.just([{"key": "gpu", "operator": "Exists"}]),
        "containers": st.lists(_SIDECAR | _ENGINE_PATCH, max_size=3, unique_by=_NAME),
        "initContainers": st.lists(_SIDECAR, max_size=2, unique_by=_NAME),
        "volumes": _VOLUMES,
        "topologySpreadConstraints": _SPREAD | st.none(),
        "securityContext": _CONTEXT | st.none(),
        "enableServiceLinks": st.none() | st.just(True),
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(spec=_SPECS)
def test_any_overlay_is_merged_as_the_api_server_merges_it(api: Api, shared_namespace: str, spec: Json) -> None:
    _compare(api, shared_namespace, {"spec": spec})


@pytest.fixture(scope="module")
def shared_namespace(box: Any) -> str:
    """One namespace with the Deployment that is patched, for all tests here."""
    api = Api(box.kubeconfig)
    name = "overlays"
    api.create("namespaces", {"metadata": {"name": name}})
    api.create("deployments", _rendered(name, None))
    return name
