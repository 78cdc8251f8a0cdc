"""`python -m tests.pagefleet_operator.autoscaling.hpa`: record what a real HorizontalPodAutoscaler answers.

A real API server and a real kube-controller-manager run here (no nodes), with the autoscaler's period shortened to
2 s. The answers go to `hpa_timelines.json`, which a fast test replays through our own function.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster import control, pki
from e2e.cluster.binaries import cached_binaries
from e2e.cluster.box import Box
from e2e.cluster.layout import Layout
from pagefleet_api.crd import custom_resource_definition
from tests.pagefleet_operator.apiserver.api import Api, eventually
from tests.pagefleet_operator.autoscaling.hpa.endpoint import API_GROUP, VERSIONS, Endpoint
from tests.pagefleet_operator.autoscaling.hpa.rehearsal import NAMESPACE, Rehearsal
from tests.pagefleet_operator.autoscaling.hpa.scenarios import DURATION_S, SCENARIOS, TIMELINES, Scenario

SYNC_S = 2.0
AT_ONCE = 14
PORT = 17240
LAYOUT = Layout(bridge=None, first_port=17200)


def main() -> int:
    """Record every scenario, or those whose names are given."""
    wanted = [one for one in SCENARIOS if one.name in sys.argv[1:]] or list(SCENARIOS)
    known = json.loads(TIMELINES.read_text()) if TIMELINES.exists() else {}
    with tempfile.TemporaryDirectory() as folder, _cluster(Path(folder)) as box:
        for first in range(0, len(wanted), AT_ONCE):
            known |= _round(box, tuple(wanted[first : first + AT_ONCE]))
            _write(known)
    return 0


def _write(known: dict[str, object]) -> None:
    ordered = {one.name: known[one.name] for one in SCENARIOS if one.name in known}
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(frames)}" for name, frames in ordered.items())
    TIMELINES.write_text(f"{{\n{rows}\n}}\n")


def _round(box: Box, scenarios: tuple[Scenario, ...]) -> dict[str, object]:
    api = Api(box.kubeconfig)
    api.create("namespaces", {"metadata": {"name": NAMESPACE}})
    account = api.path("serviceaccounts", NAMESPACE, "default")
    eventually(lambda: api.get("serviceaccounts", NAMESPACE, "default"), account)
    rehearsal = Rehearsal(api, scenarios)
    endpoint = Endpoint(PORT, box.folders.pki / "apiserver.crt", box.folders.pki / "apiserver.key", rehearsal.readings)
    rehearsal.prepare()
    rehearsal.begin()
    until_s = time.monotonic() + DURATION_S
    while time.monotonic() < until_s:
        rehearsal.follow()
        time.sleep(0.1)
    endpoint.close()
    for name, stage in rehearsal.stages.items():
        print(f"{name}: {len(stage.frames)} questions, replicas {[frame[1] for frame in stage.frames]}", flush=True)
    api.delete("namespaces", None, NAMESPACE)
    eventually(lambda: api.get("namespaces", None, NAMESPACE) is None, "the namespace is gone", timeout_s=60)
    return {name: stage.frames for name, stage in rehearsal.stages.items()}


@contextlib.contextmanager
def _cluster(folder: Path) -> Iterator[Box]:
    """API server and controllers with a short period, tolerances in `behavior`, and our metrics API behind it."""
    box = Box.at(folder, LAYOUT)
    gate = "--feature-gates=HPAConfigurableTolerance=true"
    commands = control.commands(LAYOUT, box.folders, cached_binaries())
    swapped = {"--enable-aggregator-routing=true": "--enable-aggregator-routing=false"}
    swapped |= {"--horizontal-pod-autoscaler-sync-period=5s": f"--horizontal-pod-autoscaler-sync-period={SYNC_S:g}s"}
    commands = {name: [swapped.get(word, word) for word in words] for name, words in commands.items()}
    box.folders.root.mkdir(parents=True)
    pki.create(LAYOUT, box.folders)
    try:
        box.processes.start("etcd", commands["etcd"])
        box.processes.start("kube-apiserver", [*commands["kube-apiserver"], gate])
        eventually(box.api().ready, "the API server is ready", timeout_s=90)
        api = Api(box.kubeconfig)
        api.create("customresourcedefinitions", custom_resource_definition())
        _register(api)
        eventually(lambda: _served(api), "the CRD is served", timeout_s=30)
        box.processes.start("kube-controller-manager", [
            *commands["kube-controller-manager"], gate, "--concurrent-horizontal-pod-autoscaler-syncs=20",
        ])  # fmt: skip
        yield box
    finally:
        box.down()


def _served(api: Api) -> bool:
    try:
        return isinstance(api.list("inferenceservices"), list)
    except Exception:
        return False


def _register(api: Api) -> None:
    """Aggregation to a port of this host: the Service is only a name for it."""
    service = {"metadata": {"name": "metrics", "namespace": "kube-system"},
               "spec": {"type": "ExternalName", "externalName": "localhost"}}  # fmt: skip
    eventually(lambda: api.get("namespaces", None, "kube-system"), "kube-system is there", timeout_s=30)
    api.create("services", service)
    for version in VERSIONS:
        spec = {"group": API_GROUP, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": "metrics", "namespace": "kube-system", "port": PORT}}  # fmt: skip
        body = {"metadata": {"name": f"{version}.{API_GROUP}"}, "spec": spec}
        api.call("POST", "/apis/apiregistration.k8s.io/v1/apiservices", body)


if __name__ == "__main__":
    sys.exit(main())
