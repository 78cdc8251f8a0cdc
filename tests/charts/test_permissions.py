"""The real operator with exactly the chart's permissions does its work and is never refused."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.box import Box
from pagefleet_api import labels
from tests.charts.helm import CHART, NAMESPACE
from tests.charts.install_rig import SERVICE, api_server, helm_on, install

pytestmark = pytest.mark.apiserver

ACCOUNT = "pagefleet-operator"
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: default
  labels: {labels}
spec:
  serviceAccountName: smollm2
  containers: [{{name: engine, image: none, resources: {{limits: {{example.com/device: 1}}}}}}]
---
"""
EVENT = """
apiVersion: v1
kind: Event
metadata:
  name: {name}
  namespace: default
involvedObject: {{kind: Pod, namespace: default, name: {name}, uid: {uid}}}
reason: FailedMount
message: no such claim
type: Warning
lastTimestamp: "2026-01-01T00:00:00Z"
---
"""
ON_NODES = """
apiVersion: v1
kind: Node
metadata: {name: node}
---
apiVersion: pagefleet.io/v1alpha1
kind: InferenceService
metadata: {name: on-nodes, namespace: default}
spec:
  model: {uri: s3://bucket/name, secretRef: {name: token}, cache: {mode: Node}}
  engine: {device: cpu, kvCache: {size: 256Mi}}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: default}
stringData: {AWS_REGION: here}
"""
CHILDREN = ("serviceaccount/smollm2", "service/smollm2", "deployment.apps/smollm2")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with api_server(tmp_path_factory.mktemp("permissions"), 0) as box:
        yield box


def _kubeconfig_of_the_operator(box: Box, folder: Path) -> Path:
    """The operator's own credentials: a token of its ServiceAccount and nothing else."""
    token = box.kubectl("create", "token", ACCOUNT, f"--namespace={NAMESPACE}").stdout.strip()
    assert token
    config: dict[str, Any] = yaml.safe_load(box.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def _children_and_status(box: Box) -> bool:
    found = box.kubectl("get", "-o", "name", "--ignore-not-found", *CHILDREN)
    status = box.kubectl("get", "infs/smollm2", "-o", "jsonpath={.status.url}")
    return set(found.stdout.split()) == set(CHILDREN) and bool(status.stdout)


def _a_pod_too_many(box: Box) -> None:
    pod_labels = {**labels.common("smollm2"), labels.SERVING: labels.SERVING_TRUE}
    pods = "".join(POD.format(name=name, labels=json.dumps(pod_labels)) for name in ("one", "two"))
    created = box.kubectl("apply", "-f", "-", stdin=pods)
    assert created.returncode == 0, created.stderr
    settled = '{"status": {"observedGeneration": 99, "replicas": 2, "updatedReplicas": 2}}'  # nobody else says so here
    patched = box.kubectl("patch", "deployment/smollm2", "--subresource=status", "--type=merge", f"--patch={settled}")
    assert patched.returncode == 0, patched.stderr


def _one_pod_marked_and_told_of(box: Box) -> bool:
    marked = box.kubectl("get", "pods", "-o", "name", "-l", f"{labels.SERVING}={labels.SERVING_FALSE}")
    events = box.kubectl("get", "events.events.k8s.io", "-o", "jsonpath={.items[*].reason}")
    return len(marked.stdout.split()) == 1 and "Draining" in events.stdout.split()


def _say_of_pods(box: Box, **scheduled: str) -> None:
    """What a scheduler says of both pods."""
    status = {"status": {"conditions": [{"type": "PodScheduled", **scheduled}]}}
    for name in ("one", "two"):
        patch = f"--patch={json.dumps(status)}"
        box.kubectl("patch", f"pod/{name}", "--subresource=status", "--type=merge", patch)


def _hinder_pods(box: Box) -> None:
    """A node has both pods, and their volumes do not come."""
    uids = {name: box.kubectl("get", f"pod/{name}", "-o", "jsonpath={.metadata.uid}").stdout for name in ("one", "two")}
    events = "".join(EVENT.format(name=name, uid=uid) for name, uid in uids.items())
    created = box.kubectl("apply", "-f", "-", stdin=events)
    assert created.returncode == 0, created.stderr
    _say_of_pods(box, status="True", lastTransitionTime="2026-01-01T00:00:00Z")


def _ready_says(words: str) -> Callable[[Box], bool]:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].message}"
    return lambda box: words in box.kubectl("get", "infs/smollm2", "-o", path).stdout


def _wait(done: Callable[[Box], bool], box: Box, log: Path) -> None:
    deadline_s = time.monotonic() + 30
    while not done(box):
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.5)


def _of_nodes(*, there: bool) -> Callable[[Box], bool]:
    """Whether all of a model on nodes is there, or nothing of it but the copied Secret, which a controller removes."""
    chosen = ("-l", labels.MODEL, "-o", "name", "--ignore-not-found")

    def found(box: Box) -> bool:
        own = box.kubectl("get", "daemonsets,secrets", f"--namespace={NAMESPACE}", *chosen).stdout.split()
        volumes = box.kubectl("get", "pv,pvc", *chosen).stdout.split()
        marks = box.kubectl("get", "node/node", "-o", "jsonpath={.metadata.labels}").stdout.count(labels.NODE_MODEL)
        return (len(own), len(volumes), marks) == ((2, 2, 1) if there else (1, 0, 0))

    return found


def _model_on_nodes(box: Box, log: Path) -> None:
    applied = box.kubectl("apply", "-f", "-", stdin=ON_NODES)
    assert applied.returncode == 0, applied.stderr
    _wait(_of_nodes(there=True), box, log)
    for name in box.kubectl("get", "pv,pvc", "-l", labels.MODEL, "-o", "name").stdout.split():
        box.kubectl(
            "patch", name, "--type=merge", '--patch={"metadata": {"finalizers": null}}'
        )  # no controller does it
    box.kubectl("delete", "infs/on-nodes")
    box.kubectl("delete", "deployment/on-nodes")
    _wait(_of_nodes(there=False), box, log)
    box.kubectl("delete", "node/node", "secret/token")


@pytest.mark.parametrize("namespaces", [(), ("default",)], ids=["whole cluster", "one namespace"])
def test_the_operator_needs_no_more_than_the_chart_gives(box: Box, tmp_path: Path, namespaces: tuple[str, ...]) -> None:
    watched = ["--set", f"watchNamespaces={{{','.join(namespaces)}}}", "--set", "customMetrics.enabled=true"]
    watched = watched if namespaces else ["--set", "nodeCache.enabled=true,readModelSecrets=true"]
    install(box, CHART, *watched)
    flags = [f"--namespace={namespace}" for namespace in namespaces]
    flags += ["--listen=127.0.0.1:0", f"--lease-namespace={NAMESPACE}", f"--lease-name={ACCOUNT}"]
    flags += ["--custom-metrics=127.0.0.1:0"] if namespaces else ["--node-cache=/run/models", "--read-model-secrets"]
    log = tmp_path / "log"
    environment = {**os.environ, "KUBECONFIG": str(_kubeconfig_of_the_operator(box, tmp_path))}
    with log.open("w") as output:
        command = [sys.executable, "-m", "pagefleet_operator", *flags]
        operator = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            applied = box.kubectl("apply", "-f", "-", stdin=SERVICE)
            assert applied.returncode == 0, applied.stderr
            _wait(_children_and_status, box, log)
            if not namespaces:
                _model_on_nodes(box, log)
            _a_pod_too_many(box)
            _wait(_one_pod_marked_and_told_of, box, log)
            _say_of_pods(box, status="False", reason="Unschedulable", message="no room")
            _wait(_ready_says("no room" if namespaces else "example.com/device, which no node has"), box, log)
            _hinder_pods(box)
            _wait(_ready_says("FailedMount: no such claim"), box, log)
            lease = box.kubectl("get", "lease", ACCOUNT, f"--namespace={NAMESPACE}", "-o", "name")
            assert lease.stdout, lease.stderr
            _wait(lambda _: not namespaces or "custom_metrics_registered" in log.read_text(), box, log)
            assert operator.poll() is None
        finally:
            operator.terminate()
            operator.wait(timeout=20)
            box.kubectl(
                "delete",
                "infs,deployments,services,serviceaccounts,pods,events",
                "--all",
                "--grace-period=0",
                "--force",
            )
            helm_on(box, "uninstall", "pagefleet")
    assert "forbidden" not in log.read_text().lower(), log.read_text()
