"""Short ways to write models on nodes down."""

from typing import Any

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator import render
from pagefleet_operator.plan.node_cache import NodeModel, node_label

STORE = render.NodeStore("system", "control:1", "/var/lib/models", "1Gi", ("registry",))
ENGINE = {"device": "cpu", "kvCache": {"size": "64Mi"}}


def user(name: str = "s", namespace: str = "n", *, secret: str | None = None, **spec: Any) -> InferenceService:
    """A service that wants its model on nodes."""
    private = {} if secret is None else {"secretRef": {"name": secret}}
    model = {"uri": "hf://org/name", "revision": "v1", "cache": {"mode": "Node"}, **private, **spec.pop("model", {})}
    meta = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"}
    return InferenceService.parse({"metadata": meta, "spec": {"model": model, "engine": ENGINE, **spec}})


def model_of(*users: InferenceService) -> NodeModel:
    """Their model."""
    return render.node_model(users or [user()], STORE)


def node(name: str = "a", mark: str | None = None, **more: Any) -> dict[str, Any]:
    """A node, with what its label says of `model_of()`."""
    marks = {} if mark is None else {node_label(model_of().name): mark}
    node_labels = {"kubernetes.io/hostname": name, **marks, **more.pop("labels", {})}
    return {"metadata": {"name": name, "labels": node_labels}, "spec": {}, "status": {}, **more}


def pod(
    place: str, *, ready: bool = False, failure: str | None = None, model: NodeModel | None = None
) -> dict[str, Any]:
    """A pod of the model's DaemonSet on a node; `failure` is the last word of its container."""
    state: dict[str, Any] = {"state": {"running": {}}, "started": ready}
    if failure is not None:
        state = {"state": {"terminated": {"exitCode": 8, "message": failure}}, "restartCount": 1}
    marks = (model or model_of()).daemon_set["spec"]["template"]["metadata"]["labels"]
    return {
        "metadata": {"name": f"p-{place}", "uid": f"p-{place}", "labels": dict(marks)},
        "spec": {"nodeName": place},
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
            "containerStatuses": [{"name": labels.FETCH_CONTAINER, **state}],
        },
    }


def going(body: dict[str, Any]) -> dict[str, Any]:
    """The object on its way out."""
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def made(body: Any, uid: str = "u") -> dict[str, Any]:
    """A manifest as it is once it was applied."""
    return {**body, "metadata": {**body["metadata"], "uid": uid, "resourceVersion": "1"}}
