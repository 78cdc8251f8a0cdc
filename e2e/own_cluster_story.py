"""A user has a cluster and a registry already: `make demo` with both, and `make demo-stop` afterwards.

The cluster is a box of its own whose nodes have no image but pause: all others are pulled, over plain HTTP, from a
registry on this machine. It takes some minutes, so it is no part of `make test`; `make test-own-cluster` runs it.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from e2e.cluster.binaries import cache_folder
from e2e.cluster.box import Box
from e2e.cluster.configuration import PAUSE_IMAGE
from e2e.cluster.layout import SELF_TEST
from e2e.diagnosis import SYSTEM_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.registry import Registry
from e2e.sites import CHECKOUT, state_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

REGISTRY_PORT = 16499
TEAM = "team"
NAMES = (f"{TEAM}/pagefleet-control", f"{TEAM}/pagefleet-engine")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    box = Box.at(state_folder() / "own-cluster", SELF_TEST)
    try:
        box.up(2)
        yield box
    finally:
        box.down()


@pytest.fixture(scope="module")
def registry(box: Box) -> Iterator[Registry]:
    registry = Registry(state_folder() / "own-registry", f"{box.layout.host_address}:{REGISTRY_PORT}")
    registry.stop()
    registry.start()
    box.allow_plain_registry(registry.address)
    yield registry
    registry.stop()


@pytest.fixture(scope="module")
def environment(box: Box, registry: Registry) -> Mapping[str, str]:
    """What the user exports before `make`."""
    return {
        **os.environ,
        "KUBECONFIG": str(box.kubeconfig),
        "REGISTRY": f"{registry.address}/{TEAM}",
        "HOME": str(registry.home),
        "XDG_CACHE_HOME": str(cache_folder().parent),
    }


@pytest.fixture(scope="module")
def kubectl(box: Box) -> Kubectl:
    return Kubectl(str(box.bin("kubectl")), str(box.kubeconfig))


def make(target: str, environment: Mapping[str, str]) -> str:
    """The output of `make target`, which must end well."""
    command = ["make", f"--directory={CHECKOUT}", target]
    result = subprocess.run(
        command, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(result.stdout)
    assert result.returncode == 0
    return result.stdout


class Pull(NamedTuple):
    """An image that a node fetched for a pod, as the pod's event says it."""

    namespace: str
    image: str
    node: str


def pulls(kubectl: Kubectl) -> list[Pull]:
    """Each pull that ended well."""
    words = re.compile('Successfully pulled image "([^"]+)"')
    events = json.loads(kubectl.raw("/api/v1/events?fieldSelector=reason%3DPulled"))["items"]
    matches = ((event, words.match(event["message"])) for event in events)
    return [
        Pull(event["involvedObject"]["namespace"], match[1], event["source"]["host"])
        for event, match in matches
        if match
    ]


def images_on(box: Box, node: str) -> str:
    listed = box.node_exec(
        node, ["ctr", "--address=/run/ctd/containerd.sock", "--namespace=k8s.io", "images", "list", "-q"]
    )
    return listed.stdout


def test_the_nodes_have_only_the_pause_image(box: Box, registry: Registry) -> None:
    for node in box.nodes():
        assert {name for name in images_on(box, node).split() if not name.startswith("sha256:")} == {PAUSE_IMAGE}


def test_the_demo_runs_on_it_with_images_that_the_nodes_pull(
    environment: Mapping[str, str], kubectl: Kubectl, registry: Registry
) -> None:
    said = make("demo", environment)
    assert "Paris" in said
    assert set(registry.repositories()) == set(NAMES)
    found = pulls(kubectl)
    print(*found, sep="\n")
    control, engine = (f"{registry.address}/{name}" for name in NAMES)
    assert {pull.namespace for pull in found if pull.image.startswith(control)} == {SYSTEM_NAMESPACE}
    assert {pull.node for pull in found if pull.image.startswith(engine)} == {"node1", "node2"}
    assert all("@sha256:" in pull.image for pull in found), "a tag alone would be pulled again only where it is new"
    assert not any("localhost/pagefleet" in pod for pod in _images(kubectl))


def _images(kubectl: Kubectl) -> list[str]:
    return kubectl.run("get", "pods", "--all-namespaces", "-o", "jsonpath={..image}").split()


def test_stopping_the_demo_takes_ours_away_and_leaves_the_cluster(
    environment: Mapping[str, str], kubectl: Kubectl, box: Box
) -> None:
    make("demo-stop", environment)
    assert "pagefleet" not in kubectl.run("get", "crds,clusterroles,clusterrolebindings,namespaces", "-o", "name")
    assert kubectl.run("get", "pods", "--all-namespaces", "-o", "name").split() == []
    assert box.alive()
