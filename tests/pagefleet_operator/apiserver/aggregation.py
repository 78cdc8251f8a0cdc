"""A control plane whose aggregator reaches a port of this host; its HorizontalPodAutoscalers look every second.

It knows image volumes, which that of the other tests does not.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.cluster import control, pki
from e2e.cluster.binaries import cached_binaries
from e2e.cluster.box import Box
from e2e.cluster.layout import Layout
from pagefleet_api.crd import custom_resource_definition
from pagefleet_api.custom_metrics import API_GROUP, API_SERVICE, VERSION
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually
from tests.pagefleet_operator.apiserver.operators import FAST, OperatorProcess

_SWAPPED = {
    "--enable-aggregator-routing=true": "--enable-aggregator-routing=false",
    "--horizontal-pod-autoscaler-sync-period=5s": "--horizontal-pod-autoscaler-sync-period=1s",
}
_ADDED = {"kube-apiserver": ["--feature-gates=ImageVolume=true"]}
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
METRICS = f"/apis/{API_GROUP}/{VERSION}"


@contextlib.contextmanager
def control_plane(folder: Path, first_port: int, namespace: str) -> Iterator[Box]:
    """etcd, API server with the CRD and a namespace, controllers; no nodes, no scheduler."""
    layout = Layout(bridge=None, first_port=first_port)
    box = Box.at(folder, layout)
    commands = control.commands(layout, box.folders, cached_binaries())
    commands = {
        name: [*(_SWAPPED.get(word, word) for word in words), *_ADDED.get(name, ())] for name, words in commands.items()
    }
    box.folders.root.mkdir(parents=True, exist_ok=True)
    pki.create(layout, box.folders)
    try:
        for name in ("etcd", "kube-apiserver"):
            box.processes.start(name, commands[name])
        eventually(box.api().ready, "the API server is ready", timeout_s=90)
        api = Api(box.kubeconfig)
        api.create("customresourcedefinitions", custom_resource_definition())
        eventually(lambda: served(api, api.path("inferenceservices")), "the CRD is served", timeout_s=30)
        box.processes.start("kube-controller-manager", commands["kube-controller-manager"])
        api.create("namespaces", {"metadata": {"name": namespace}})
        account = api.path("serviceaccounts", namespace, "default")
        eventually(lambda: served(api, account), "the controllers work and the namespace is ready", timeout_s=30)
        yield box
    finally:
        box.down()


def served(api: Api, path: str) -> Json | None:
    """The answer at a path; None while there is none."""
    try:
        return api.call("GET", path)
    except (ApiRefusal, OSError, ValueError):  # a path that is not served yet answers no JSON
        return None


def register(api: Api, namespace: str, name: str, port: int) -> None:
    """The Service and the APIService as the chart makes them; the Service is a name for this host."""
    outside = {"type": "ExternalName", "externalName": "localhost"}
    api.create("services", {"metadata": {"name": name, "namespace": namespace}, "spec": outside})
    target = {"name": name, "namespace": namespace, "port": port}
    spec: Json = {"group": API_GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100}
    api.call("POST", API_SERVICES, {"metadata": {"name": API_SERVICE}, "spec": {**spec, "service": target}})


def operator(
    box: Box, namespace: str, port: int, log: Path, *flags: str, lease: str = "x", shard: str | None = None
) -> OperatorProcess:
    """An operator of that control plane: of the namespace, or of a shard everywhere."""
    environment = {**os.environ, "KUBECONFIG": str(box.kubeconfig), "POD_NAME": f"operator-{lease}"}
    scope = ("--namespace", namespace) if shard is None else ("--shard", shard)
    flags = ("--engine-image", "engine:1", *scope, "--listen", f"127.0.0.1:{port}", *flags)
    flags += ("--lease-namespace", namespace, "--lease-name", lease)
    return OperatorProcess(FAST, flags, environment, port, log)


def autoscaler(namespace: str, name: str, metric: Json, **more: Any) -> Json:
    """A HorizontalPodAutoscaler of the InferenceService `name` that waits a moment on the way down, as clients move."""
    target = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "InferenceService", "name": name}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4, "metrics": [metric], **more}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 5}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {**spec, "behavior": behavior}}
