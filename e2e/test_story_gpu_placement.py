"""Pods with several GPUs on two nodes of eight: the scheduler gives whole devices, and no pod shares them. One of them
goes where the user's pod template says.

The devices have a name of their own and are there for the scheduler alone: no other story can take them.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e import manifests
from e2e.devices import NODES, on_nodes
from e2e.kubectl import Kubectl
from e2e.service import KIND, Service, condition, wait_for
from e2e.sites import BoxSite

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

DEVICE = "example.com/gpu"


@pytest.fixture(scope="module")
def eight_each(place: BoxSite) -> Iterator[None]:
    """Two nodes with eight devices each."""

    with on_nodes(place, DEVICE, 8):
        yield


def _manifest(name: str, count: int, replicas: int, **spec: Any) -> str:
    engine = {"device": "auto", "parallelism": {"tensor": count}}
    limits = {"memory": "2Gi"}
    resources = {"gpu": {"resourceName": DEVICE, "count": count}, "requests": {"cpu": "50m"}, "limits": limits}
    return manifests.text(manifests.service(name, engine=engine, resources=resources, replicas=replicas, **spec))


def test_pods_with_eight_gpus_get_a_node_each_and_the_third_waits(eight_each: None, kubectl: Kubectl) -> None:
    service = Service(kubectl, "eight")
    kubectl.apply(_manifest("eight", 8, 3))
    wait_for("two pods are placed", lambda: sum(pod.node is not None for pod in service.pods()) == 2, 30)
    placed, waiting = ([pod for pod in service.pods() if (pod.node is None) is without] for without in (False, True))
    assert sorted(str(pod.node) for pod in placed) == list(NODES)
    (pod,) = waiting
    (container,) = pod.body["spec"]["containers"]
    assert container["resources"]["limits"][DEVICE] == container["resources"]["requests"][DEVICE] == "8"
    (scheduled,) = [c for c in pod.body["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert f"Insufficient {DEVICE}" in scheduled["message"]
    service.scale(0)
    wait_for("its pods are gone", lambda: not service.pods(), 60)


def test_a_pod_with_one_gpu_serves_where_its_template_says(eight_each: None, kubectl: Kubectl) -> None:
    engine = {
        "name": "engine",
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    volumes = [{"name": "scratch", "emptyDir": {}}]
    node = {"kubernetes.io/hostname": "node2"}
    pod_spec = {"nodeSelector": node, "volumes": volumes, "containers": [engine]}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": pod_spec}
    kubectl.apply(_manifest("one", 1, 1, podTemplate=template))
    service = Service(kubectl, "one")
    service.wait_until_ready(1, 90)
    (pod,) = service.pods()
    (container,) = pod.body["spec"]["containers"]
    assert container["resources"]["limits"][DEVICE] == "1"
    assert (pod.node, pod.body["metadata"]["labels"]["team"]) == ("node2", "a")
    words = "import os; print(os.environ['POD_IP'], os.access('/scratch', os.W_OK))"
    assert kubectl.run("exec", pod.name, "--", "python3", "-c", words).split() == [pod.address, "True"]


def test_a_pod_with_a_disk_for_blocks_waits_for_a_node_that_has_so_much(eight_each: None, kubectl: Kubectl) -> None:
    cache = {"hostOffload": "1Gi", "diskOffload": "900Ti"}
    engine = {"runtime": "sglang", "image": "localhost/none:1", "device": "cuda", "kvCache": cache}
    resources = {"gpu": {"resourceName": DEVICE}, "limits": {"memory": "2Gi"}}
    model = {"uri": "file:///models/none"}
    kubectl.apply(manifests.text(manifests.service("disk", model=model, engine=engine, resources=resources)))
    service = Service(kubectl, "disk")
    wait_for("its status says so", lambda: "Insufficient ephemeral-storage" in _why(service), 60)
    (pod,) = service.pods()
    (container,) = pod.body["spec"]["containers"]
    assert container["resources"]["requests"]["ephemeral-storage"] == "900Ti"
    kubectl.run("delete", KIND, "disk", "--wait=false")


def _why(service: Service) -> str:
    return str((condition(service.object(), "Ready") or {}).get("message"))
