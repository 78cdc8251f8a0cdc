"""A model on nodes: bytes that are not the published ones never become it, each node downloads it once, nobody writes
to it, and nothing of it is left in the cluster after its last service, and on disk until there is no room beside it."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from e2e import adapters, manifests
from e2e.demo_steps import chat
from e2e.devices import NODES
from e2e.diagnosis import SYSTEM_NAMESPACE
from e2e.kubectl import Json, Kubectl
from e2e.release import NODE_CACHE
from e2e.service import KIND, Service, condition, is_ready, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels
from pagefleet_fetch.folder import RECORD
from tests.pagefleet_engine.tiny_model import write_tiny_model
from tests.pagefleet_fetch.servers import Fault, Served, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

WEIGHTS = "model.safetensors"
SHARED = ("one", "two")
OURS = f"{labels.MODEL},{labels.MANAGED_BY}={labels.FIELD_MANAGER}"
WRITE = "import os; os.open('/model/mine', os.O_CREAT | os.O_WRONLY)"


class Story(NamedTuple):
    """The web server that has the model, and the cluster that gets it."""

    place: BoxSite
    kubectl: Kubectl
    web: Served

    def service(self, name: str) -> Service:
        return Service(self.kubectl, name)

    def daemon_sets(self) -> list[Json]:
        return self.kubectl.within(SYSTEM_NAMESPACE).items("daemonsets", OURS)

    def marks(self) -> list[str]:
        """What the nodes' labels say of models."""
        nodes = [node["metadata"]["labels"] for node in self.kubectl.items("nodes")]
        return [value for found in nodes for key, value in found.items() if key.startswith(f"{labels.NODE_MODEL}/")]

    def on_disks(self, *, begin: Sequence[str] = ("ls",)) -> list[list[str]]:
        """The models on each node's disk, with a command before their records' names."""
        found = []
        for node in NODES[:2]:
            line = f"cd {NODE_CACHE['path']} && {' '.join(begin)} */{RECORD}"
            answer = self.place.box.node_exec(node, ["/bin/sh", "-c", line])
            found.append(answer.stdout.split())
        return found

    def left(self) -> list[str]:
        """Whatever there is of models on nodes."""
        found = [*self.daemon_sets(), *self.kubectl.items("pv", OURS), *self.kubectl.items("pvc", OURS)]
        return [body["metadata"]["name"] for body in found] + self.marks()


@pytest.fixture(scope="module")
def story(place: BoxSite, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A web server on the host whose weights have a wrong byte, and two services with that model."""
    model = write_tiny_model(tmp_path_factory.mktemp("published"))
    files = {f"{name}/{path.name}": path.read_bytes() for path in model.iterdir() for name in ("tiny", "other")}
    files |= adapters.published(tmp_path_factory.mktemp("sql"), model)
    broken = {f"tiny/{WEIGHTS}": [Fault(flip_first_byte=True)] * 1000}
    with serving(Served(files, faults=broken), host=place.box.layout.host_address) as web:
        story = Story(place, kubectl, web)
        for name in SHARED:
            kubectl.apply(manifests.text(_service(name, f"{web.address}/tiny/")))
        yield story
        kubectl.run("delete", KIND, "--all", "--wait=false")


def _service(name: str, uri: str, **more: object) -> Json:
    model = {"uri": uri, "cache": {"mode": "Node"}, **more}
    engine = {"maxModelLen": 256, "kvCache": {"size": "16Mi"}}
    return manifests.service(name, model=model, engine=engine, drain={"timeoutSeconds": 5})


def _says(body: Json, kind: str) -> tuple[str, str, str]:
    found = condition(body, kind) or {}
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def _writer(claim: str, image: str) -> Json:
    """A pod as anybody of the namespace may make it, who asks for a volume to write to, and for its files."""
    kept = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    mounts = [{"name": "model", "mountPath": "/model"}]
    command = ["python3", "-c", WRITE]
    container = {"name": "writer", "image": image, "command": command, "volumeMounts": mounts, "securityContext": kept}
    spec = {
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{**container, "imagePullPolicy": "IfNotPresent"}],
        "volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": claim}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": spec}


def test_bytes_that_are_not_the_published_ones_never_become_a_model(story: Story) -> None:
    for name in SHARED:
        with story.service(name).watch() as watch:
            told = watch.until(lambda body: _says(body, "ModelCached")[1] == "ModelFetchFailed", 60).body
        assert WEIGHTS in _says(told, "ModelCached")[2], told["status"]
        assert _says(told, "Ready")[:2] == ("False", "ModelFetchFailed")
        assert story.service(name).pods() == []
    assert set(story.marks()) == {labels.NODE_MODEL_WANTED}


def test_each_node_downloads_once_for_all_services_and_they_answer(story: Story) -> None:
    story.web.faults.clear()
    story.web.asked.clear()
    for name in SHARED:
        ready = story.service(name).wait_until_ready(1, 120)
        assert _says(ready, "ModelCached")[:2] == ("True", "Cached")
    (daemon_set,) = story.daemon_sets()
    nodes = daemon_set["status"]["desiredNumberScheduled"]
    wait_for("every node has it", lambda: story.marks() == [labels.NODE_MODEL_READY] * nodes, 60)
    assert nodes == 2
    assert len(story.web.offsets(WEIGHTS)) == nodes, story.web.offsets(WEIGHTS)
    answers = {"".join(chat(story.service(name).cluster_url(), name, "Hello!")) for name in SHARED}
    assert len(answers) == 1


def test_no_pod_of_the_namespace_can_write_to_it(story: Story) -> None:
    engine = story.service("one").pods()[0].body["spec"]
    (claim,) = (each["persistentVolumeClaim"]["claimName"] for each in engine["volumes"] if each["name"] == "models")
    assert not [volume for volume in engine["volumes"] if "hostPath" in volume]
    story.kubectl.apply(json.dumps(_writer(claim, engine["containers"][0]["image"])))
    wait_for("the pod has ended", lambda: (story.kubectl.get("pod", "writer") or {})["status"]["phase"] == "Failed", 60)
    assert "Read-only file system" in story.kubectl.run("logs", "writer")
    story.kubectl.run("delete", "pod", "writer", "--wait=false")


def test_the_last_service_takes_everything_with_it(story: Story) -> None:
    story.kubectl.run("delete", KIND, "one", "--wait=false")
    two = story.service("two")
    wait_for("the other's pods are gone", lambda: story.service("one").pods() == [], 40)
    assert is_ready(two.object(), 1) and set(story.marks()) == {labels.NODE_MODEL_READY}, two.object()["status"]
    story.kubectl.run("delete", KIND, "two", "--wait=false")
    wait_for("nothing is left", lambda: story.left() == [], 60)


def test_what_nobody_wants_stays_on_disk_until_another_model_needs_the_room(story: Story) -> None:
    before = story.on_disks()
    assert [len(found) for found in before] == [1, 1], before
    story.on_disks(begin=("touch", "-d", "'1 hour ago'"))  # for ten minutes after its use it counts as in use
    given = [{"name": adapters.NAME, "uri": f"{story.web.address}/{adapters.NAME}/"}]
    story.kubectl.apply(manifests.text(_service("three", f"{story.web.address}/other/", adapters=given)))
    wait_for("every node has it and its adapter", lambda: story.marks() == [labels.NODE_MODEL_READY] * 4, 60)
    after = story.on_disks()
    kept = [set(old) & set(new) for old, new in zip(before, after, strict=True)]
    assert [len(found) for found in after] == [2, 2] and kept == [set(), set()], (before, after)


def test_an_adapter_is_on_the_nodes_beside_its_model(story: Story) -> None:
    three = story.service("three")
    ready = three.wait_until_ready(1, 120)
    assert _says(ready, "ModelCached")[:2] == ("True", "Cached")
    assert len(story.daemon_sets()) == 2
    plain, adapted = ("".join(chat(three.cluster_url(), name, "Hello!")) for name in ("three", adapters.NAME))
    assert plain != adapted
    story.kubectl.run("delete", KIND, "three", "--wait=false")
    wait_for("nothing is left", lambda: story.left() == [], 60)
