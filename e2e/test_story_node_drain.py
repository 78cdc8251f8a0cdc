"""A node is drained and a pod is deleted under full load: every stream comes to its end."""

from collections.abc import Iterator

import pytest

from e2e import manifests
from e2e.kubectl import Kubectl
from e2e.long_streams import Ridden, assert_all_whole, ride
from e2e.service import Pod, Service
from e2e.sites import BoxSite
from e2e.warm_up import until_every_pod_answers
from pagefleet_api import labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STEP_S = 0.25


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    service = Service(kubectl, "spread")
    kubectl.apply(manifests.text(manifests.paced("spread", STEP_S, engine={"maxNumSeqs": 128}, replicas=3)))
    service.wait_until_ready(3, 150)
    until_every_pod_answers(service, service.pods())
    return service


def busiest_node(pods: list[Pod]) -> str:
    nodes = [str(pod.node) for pod in pods]
    return max(sorted(set(nodes)), key=nodes.count)


@pytest.fixture(scope="module")
def drained(service: Service, place: BoxSite) -> Iterator[tuple[str, Ridden]]:
    """`kubectl drain` of the node that has most of the pods."""
    node = busiest_node(service.pods())
    words = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=250s"]
    chosen = f"--pod-selector={labels.SERVICE}={service.name}"
    try:
        ridden = ride(service, lambda: print(place.kubectl.run(*words, chosen, timeout_s=280)))
        yield node, ridden
    finally:
        place.kubectl.run("uncordon", node)


def test_draining_a_node_cuts_no_stream_off_and_moves_its_pods(service: Service, drained: tuple[str, Ridden]) -> None:
    node, ridden = drained
    assert_all_whole(ridden)
    service.wait_until_ready(3, 150)
    assert node not in {pod.node for pod in service.pods() if not pod.terminating}


def test_deleting_a_pod_cuts_no_stream_off(service: Service, drained: tuple[str, Ridden]) -> None:
    until_every_pod_answers(service, [pod for pod in service.pods() if not pod.terminating])
    victim = service.pods()[0]
    assert_all_whole(ride(service, lambda: print(service.kubectl.run("delete", "pod", victim.name, timeout_s=280))))
    service.wait_until_ready(3, 150)
    assert victim.name not in {pod.name for pod in service.pods()}
