"""Models on nodes against a real API server: its volume binder, its DaemonSets, its garbage collector."""

import pytest

from pagefleet_api import labels
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver

MODEL = {"uri": "s3://bucket/name", "secretRef": {"name": "token"}, "cache": {"mode": "Node"}}
OURS = labels.MODEL
WAIT_S = 30
FLAGS = ("--node-cache", "/run/models", "--node-cache-limit", "1Gi", "--read-model-secrets")


def _condition(api: Api, namespace: str, kind: str) -> Json:
    live = api.get("inferenceservices", namespace, "s") or {}
    return next((one for one in live.get("status", {}).get("conditions") or () if one["type"] == kind), {})


def _marks(api: Api, node: str, model: str) -> str | None:
    live = api.get("nodes", None, node) or {"metadata": {}}
    found: str | None = live["metadata"].get("labels", {}).get(f"{labels.NODE_MODEL}/{model}")
    return found


def _place(api: Api, namespace: str, model: str, node: str) -> None:
    """What scheduler and kubelet do, once the model is on the node."""
    (pod,) = eventually(
        lambda: api.list("pods", namespace, f"{labels.MODEL}={model}"), "the DaemonSet has a pod", WAIT_S
    )
    name = pod["metadata"]["name"]
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    api.call("POST", f"{api.path('pods', namespace, name)}/binding", binding)
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    api.merge("pods", namespace, name, {"status": ready}, "status")


def _replicas(api: Api, namespace: str) -> int | None:
    found = api.get("deployments", namespace, "s")
    return None if found is None else found["spec"]["replicas"]


def _left_without_pods(api: Api, namespace: str, model: str) -> list[str]:
    """What there is of the model, once pods that are to go have gone, as a kubelet sees to it."""
    for pod in api.list("pods", namespace):
        if pod["metadata"].get("deletionTimestamp"):
            api.delete("pods", namespace, pod["metadata"]["name"], {"gracePeriodSeconds": 0})
    found = [*api.list("daemonsets", namespace, OURS), *api.list("persistentvolumes", None, OURS)]
    found += [*api.list("persistentvolumeclaims", namespace, OURS), *api.list("secrets", namespace, OURS)]
    names = [body["metadata"]["name"] for body in found]
    marks = [node["metadata"].get("labels", {}) for node in api.list("nodes")]
    return names + [label for each in marks for label in each if label.endswith(f"/{model}")]


def test_a_private_model_comes_before_its_pods_and_leaves_nothing(api: Api, namespace: str, start: Start) -> None:
    secret = {
        "metadata": {"name": "token", "namespace": namespace},
        "stringData": {"AWS_ACCESS_KEY_ID": "x", "PS1": "y"},
    }
    api.create("secrets", secret)
    node = f"{namespace}-node"
    api.create("nodes", {"metadata": {"name": node, "labels": {"test": namespace}}})
    start(flags=FLAGS).ready()
    placed = {"spec": {"nodeSelector": {"test": namespace}}}
    api.create("inferenceservices", service(namespace, model=MODEL, podTemplate=placed))
    (daemon_set,) = eventually(lambda: api.list("daemonsets", namespace, OURS), "there is a DaemonSet", WAIT_S)
    model = daemon_set["metadata"]["name"]
    eventually(lambda: _marks(api, node, model) == "wanted", "the node is to get it", WAIT_S)
    (copy,) = eventually(lambda: api.list("secrets", namespace, OURS), "the credentials are handed on", WAIT_S)
    assert set(copy["data"]) == {"AWS_ACCESS_KEY_ID"}
    eventually(lambda: _condition(api, namespace, "ModelCached").get("status") == "False", "pods wait for it", WAIT_S)
    assert _replicas(api, namespace) in {0, None}
    _place(api, namespace, model, node)
    eventually(lambda: _marks(api, node, model) == "ready", "the node has it", WAIT_S)
    eventually(lambda: _condition(api, namespace, "ModelCached").get("status") == "True", "the service knows", WAIT_S)
    eventually(lambda: _replicas(api, namespace) == 1, "pods are wanted", WAIT_S)
    (claim,) = api.list("persistentvolumeclaims", namespace, OURS)
    name = claim["metadata"]["name"]
    eventually(lambda: _phase(api, namespace, name) == "Bound", "the claim is bound", WAIT_S)
    api.delete("inferenceservices", namespace, "s")
    eventually(lambda: not _left_without_pods(api, namespace, model), "nothing is left", 2 * WAIT_S)


def _phase(api: Api, namespace: str, claim: str) -> str:
    live = api.get("persistentvolumeclaims", namespace, claim) or {}
    return str(live.get("status", {}).get("phase"))


def test_without_the_rights_a_service_is_told_what_gives_them(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    api.create("inferenceservices", service(namespace, model={"uri": "s3://bucket/name", "cache": {"mode": "Node"}}))
    eventually(
        lambda: "nodeCache.enabled: true" in _condition(api, namespace, "Ready").get("message", ""), "the way out"
    )
    assert _condition(api, namespace, "Stalled")["status"] == "True"
