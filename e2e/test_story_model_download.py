"""A model of a hub: a wrong token is named, one download serves two services, and no pod waits for it with a GPU. Its
adapters come in the same ways.
"""

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e import adapters, manifests
from e2e.demo_steps import chat
from e2e.kubectl import Json, Kubectl
from e2e.service import KIND, Service, condition, get_json, is_ready, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels
from tests.pagefleet_engine.tiny_model import write_tiny_model
from tests.pagefleet_fetch.servers import COMMIT, Fault, Served, hub, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TOKEN = "hf_right"
URI = "hf://org/name"
WEIGHTS = "model.safetensors"
SHARED = ("one", "two")


class Story(NamedTuple):
    """The hub, the store of its large files, a gate that the store's first answer waits for, an adapter's server."""

    kubectl: Kubectl
    front: Served
    store: Served
    gate: threading.Event
    web: Served

    def adapt(self, name: str, **uris: str) -> None:
        """Give a service these adapters, by their names."""
        given = [{"name": adapter, "uri": uri} for adapter, uri in uris.items()]
        patch = json.dumps({"spec": {"model": {"adapters": given}}})
        self.kubectl.run("patch", KIND, name, "--type=merge", "-p", patch)

    def service(self, name: str) -> Service:
        return Service(self.kubectl, name)

    def jobs(self) -> list[Json]:
        return self.kubectl.items("jobs", labels.MODEL)

    def fetch_pods(self) -> list[Json]:
        return self.kubectl.items("pods", labels.FETCH)

    def give_token(self, token: str) -> None:
        data = {"HF_TOKEN": token, "HF_ENDPOINT": self.front.address}
        self.kubectl.apply(
            json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": data})
        )

    def begin_again(self) -> None:
        """As the documentation says: the wait between two tries is cut short by removing the Job."""
        self.kubectl.run("delete", "jobs", "--selector", labels.MODEL, "--wait=false")


@pytest.fixture(scope="module")
def story(place: BoxSite, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A hub on the host that wants a token, a claim on a folder that all nodes see, two services and a third one."""
    model = write_tiny_model(tmp_path_factory.mktemp("published"))
    files = {path.name: path.read_bytes() for path in model.iterdir()} | {"README.md": b"# tiny"}
    folder = tmp_path_factory.mktemp("claim")
    folder.chmod(0o777)
    gate = threading.Event()
    adapter = adapters.published(tmp_path_factory.mktemp("sql"), model)
    host = place.box.layout.host_address
    with hub(files, TOKEN, host) as (front, store), serving(Served(adapter), host=host) as web:
        story = Story(kubectl, front, store, gate, web)
        story.give_token("hf_wrong")
        for body in _storage(kubectl.namespace, folder):
            kubectl.apply(json.dumps(body))
        for name in SHARED:
            kubectl.apply(manifests.text(_service(name, {"mode": "PVC", "pvc": "models", "limit": "1Gi"})))
        yield story
        gate.set()
        kubectl.run("delete", KIND, "--all", "--wait=false")
        kubectl.run("delete", "pv", kubectl.namespace, "--wait=false")


def _storage(name: str, folder: Path) -> list[Json]:
    """As an administrator would make a volume that all nodes share."""
    size = {"storage": "2Gi"}
    volume = {"capacity": size, "accessModes": ["ReadWriteMany"], "hostPath": {"path": str(folder)}}
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": size}}
    shared = {"storageClassName": "", "volumeName": name}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "spec": claim | shared},
    ]


def _service(name: str, cache: Json) -> Json:
    model = {"uri": URI, "revision": COMMIT, "secretRef": {"name": "hub"}, "cache": cache}
    engine = {"maxModelLen": 256, "kvCache": {"size": "16Mi"}}
    return manifests.service(name, model=model, engine=engine, drain={"timeoutSeconds": 5})


def _says(body: Json, kind: str) -> tuple[str, str, str]:
    found = condition(body, kind) or {}
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def _renewed(service: Service, before: set[str]) -> bool:
    """Every pod is one of a later template, and ready."""
    return is_ready(service.object(), 1) and not before & {pod.name for pod in service.pods()}


def _serves_by(service: Service, names: list[str]) -> bool:
    return [model["id"] for model in get_json(f"{service.cluster_url()}/models")["data"]] == names


def _serves(service: Service) -> bool:
    """A ClusterIP follows its pods a moment late."""
    try:
        return bool(get_json(f"{service.cluster_url()}/models")["data"])
    except OSError:
        return False


def test_a_wrong_token_is_named_and_no_pod_is_made(story: Story) -> None:
    for name in SHARED:
        with story.service(name).watch() as watch:
            told = watch.until(lambda body: _says(body, "ModelCached")[1] == "ModelFetchFailed", 60).body
        status, _, words = _says(told, "ModelCached")
        assert status == "False"
        assert URI in words and "HTTP 403" in words and "HF_TOKEN" in words and "hf_wrong" not in words
        assert _says(told, "Ready")[:2] == ("False", "ModelFetchFailed")
        assert story.service(name).pods() == []


def test_a_download_that_is_stopped_ends_at_once(story: Story) -> None:
    story.store.faults[WEIGHTS] = [Fault(wait=story.gate)]
    story.give_token(TOKEN)
    story.begin_again()
    with story.service("one").watch() as watch:
        watch.until(lambda body: _says(body, "ModelCached")[1] == "Fetching", 30)
    wait_for("the store is asked for the weights", lambda: bool(story.store.offsets(WEIGHTS)), 60)
    stopped = {pod["metadata"]["uid"] for pod in story.fetch_pods()}
    began_s = time.monotonic()
    story.begin_again()
    wait_for("its pod is gone", lambda: not stopped & {pod["metadata"]["uid"] for pod in story.fetch_pods()}, 25)
    assert time.monotonic() - began_s < 15, "SIGTERM ends it, not the end of the grace period of 30 s"
    story.gate.set()


def test_two_services_share_one_download_and_answer(story: Story) -> None:
    story.kubectl.apply(manifests.text(_service("three", {})))
    for name in SHARED:
        ready = story.service(name).wait_until_ready(1, 90)
        assert _says(ready, "ModelCached")[:2] == ("True", "Cached")
    (job,) = story.jobs()
    assert sorted(owner["name"] for owner in job["metadata"]["ownerReferences"]) == sorted(SHARED)
    whole = sum("Range" not in headers for method, _, headers in story.store.asked if method == "GET")
    assert whole <= 2 + 1, "once before it was stopped, once for both, once for the one without a claim"
    wait_for("both addresses lead to their pods", lambda: all(_serves(story.service(name)) for name in SHARED), 10)
    answers = {"".join(chat(story.service(name).cluster_url(), name, "Hello!")) for name in SHARED}
    assert len(answers) == 1


def test_a_pod_without_a_claim_downloads_by_itself_and_its_engine_has_no_token(story: Story) -> None:
    service = story.service("three")
    ready = service.wait_until_ready(1, 90)
    assert condition(ready, "ModelCached") is None
    (pod,) = service.pods()
    (engine,) = pod.body["spec"]["containers"]
    assert "hub" not in json.dumps(engine.get("env", []) + engine.get("envFrom", []))
    assert "fetch_done" in story.kubectl.run("logs", pod.name, "-c", labels.FETCH_CONTAINER)


def test_a_new_model_that_does_not_exist_leaves_the_old_one_serving(story: Story) -> None:
    service = story.service("one")
    before = service.pods()[0].name
    story.kubectl.run("patch", KIND, "one", "--type=merge", "-p", '{"spec": {"model": {"revision": "v9"}}}')
    with service.watch() as watch:
        told = watch.until(lambda body: _says(body, "ModelCached")[1] == "ModelFetchFailed", 60).body
    assert "HTTP 404" in _says(told, "ModelCached")[2]
    assert _says(told, "Ready")[0] == "True"
    assert [pod.name for pod in service.pods()] == [before]
    patch = json.dumps({"spec": {"model": {"revision": COMMIT}}})
    story.kubectl.run("patch", KIND, "one", "--type=merge", "-p", patch)
    with service.watch() as watch:
        watch.until(lambda body: is_ready(body, 1) and _says(body, "ModelCached")[0] == "True", 30)
    assert [pod.name for pod in service.pods()] == [before]
    wait_for("only the model that is served has a Job", lambda: len(story.jobs()) == 1, 20)


def test_without_a_prefetch_a_pod_sees_to_its_claim_and_no_job_is_made(story: Story) -> None:
    jobs = {job["metadata"]["uid"] for job in story.jobs()}
    story.kubectl.apply(manifests.text(_service("four", {"mode": "PVC", "pvc": "models", "prefetch": False})))
    service = story.service("four")
    ready = service.wait_until_ready(1, 90)
    assert condition(ready, "ModelCached") is None
    assert {job["metadata"]["uid"] for job in story.jobs()} == jobs, "no Job is made for it"
    (pod,) = service.pods()
    words = story.kubectl.run("logs", pod.name, "-c", labels.FETCH_CONTAINER)
    assert "model_present" in words, f"it is there from the others' Job already: {words}"


def test_an_adapter_that_does_not_exist_is_named_and_pods_stay_as_they_are(story: Story) -> None:
    service = story.service("two")
    before = service.pods()[0].name
    story.adapt("two", sql=f"{story.web.address}/sql/", nobody=f"{story.web.address}/nobody/")
    with service.watch() as watch:
        told = watch.until(lambda body: _says(body, "ModelCached")[1] == "ModelFetchFailed", 60).body
    words = _says(told, "ModelCached")[2]
    assert "adapter nobody: " in words and "/nobody/ has no config.json, nor adapter_config.json" in words
    assert "the model: " not in words, "that is there"
    assert _says(told, "Ready")[0] == "True"
    assert [pod.name for pod in service.pods()] == [before]


def test_adapters_answer_by_their_names_in_pods_that_follow(story: Story) -> None:
    """One comes onto the claim by a Job, the other into the pod by itself."""
    plain = "".join(chat(story.service("two").cluster_url(), "two", "Hello!"))
    names = ("two", "three")
    before = {pod.name for name in names for pod in story.service(name).pods()}
    for name in names:
        story.adapt(name, sql=f"{story.web.address}/sql/")
    for name in names:
        service = story.service(name)
        wait_for("a new pod serves alone", partial(_renewed, service, before), 90)
        leads = partial(_serves_by, service, [name, "sql"])
        wait_for("its address leads to the new pod alone", leads, 20)
        adapted = "".join(chat(service.cluster_url(), "sql", "Hello!"))
        assert "".join(chat(service.cluster_url(), name, "Hello!")) == plain != adapted
