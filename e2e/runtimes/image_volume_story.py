"""A model in an image that nodes mount: containerd 2 under a Kubernetes whose pods may mount images by default.

Outside of `make test` for the minutes that these take to compile: `make test-image-volumes`.
"""

import json
from collections.abc import Iterator

import pytest

from e2e import manifests, model_image, release
from e2e.cluster import newer
from e2e.cluster.box import Box
from e2e.cluster.layout import IMAGE_VOLUMES
from e2e.demo_steps import QUESTION, chat
from e2e.kubectl import Json, Kubectl
from e2e.progress import Progress
from e2e.service import KIND, Pod, Service, condition
from e2e.sites import BoxSite, state_folder
from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.image_volumes import mounts_images
from pagefleet_operator.render.manifests import MODEL_IMAGE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME, NOWHERE = "mounted", "localhost/nowhere:1"
MODELS = "/models"


@pytest.fixture(scope="module")
def place() -> Iterator[BoxSite]:
    """A cluster of its own, with the chart."""
    progress = Progress()
    with progress.step("newer Kubernetes and containerd (compiled once)") as say:
        programs = newer.build(say)
    site = BoxSite(Box.at(state_folder() / "image-volumes", IMAGE_VOLUMES, programs))
    try:
        release.install(site, site.bring_up_apart(progress))
        model_image.load(site)
        yield site
    finally:
        site.box.down()


@pytest.fixture(scope="module")
def service(kubectl: Kubectl) -> Service:
    """Of an image that nobody has."""
    kubectl.apply(manifests.text(manifests.service(NAME, model={"uri": f"oci://{NOWHERE}#model"})))
    return Service(kubectl, NAME)


@pytest.fixture(scope="module")
def pod(service: Service) -> Pod:
    """Ready, with the right image and path."""
    _take(service, model_image.uri(model_image.FILE))
    service.wait_until_ready(1, 120)
    (found,) = [pod for pod in service.pods() if pod.ready and not pod.terminating]
    return found


def test_the_operator_knows_that_every_node_can_mount_images(place: BoxSite) -> None:
    nodes = place.kubectl.items("nodes")
    told = {node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in nodes}
    assert told == {f"containerd://{newer.CONTAINERD_VERSION.removeprefix('v')}"}
    assert [mounts_images(node) for node in nodes] == [True, True]


def test_an_image_that_cannot_be_pulled_is_named(service: Service) -> None:
    message = _told(service, Reason.IMAGE_PULL_FAILED)
    assert f"cannot pull {NOWHERE}: " in message, message
    assert "connection refused" in message, message


def test_a_path_that_the_image_does_not_have_is_named_with_what_it_has(service: Service) -> None:
    _take(service, model_image.uri(model_image.NO_FOLDER))
    message = _told(service, Reason.CRASH_LOOP)
    assert f"there is no '{MODELS}/{model_image.NO_FOLDER}' ({MODELS}/app has model)" in message, message


def test_with_the_right_path_it_answers_from_what_is_mounted(service: Service, pod: Pod) -> None:
    answer = "".join(chat(f"http://{pod.address}:{labels.ENGINE_PORT}/v1", NAME, QUESTION))
    print(answer)
    assert "Paris" in answer, answer
    assert service.deployment()["metadata"]["annotations"][MODEL_IMAGE] == "mounted"
    volumes = {volume["name"]: volume for volume in pod.body["spec"]["volumes"]}
    assert volumes["models"]["image"]["reference"] == model_image.IMAGE
    assert "initContainers" not in pod.body["spec"]


def test_the_mount_is_the_image_and_cannot_be_written_to(kubectl: Kubectl, pod: Pod) -> None:
    read = "print(open('/proc/self/mounts').read())"
    lines = kubectl.run("exec", pod.name, f"--container={labels.CONTAINER}", "--", "python3", "-c", read).splitlines()
    (options,) = [line.split()[3].split(",") for line in lines if line.split()[1:2] == [MODELS]]
    assert "ro" in options, options


def test_its_namespace_admits_restricted_pods_alone(kubectl: Kubectl, pod: Pod) -> None:
    namespace = kubectl.get("namespace", kubectl.namespace)
    assert namespace is not None
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def _take(service: Service, uri: str) -> None:
    patch = json.dumps({"spec": {"model": {"uri": uri}}})
    service.kubectl.run("patch", KIND, NAME, "--type=merge", "-p", patch)


def _told(service: Service, reason: Reason) -> str:
    """What `Ready` says, once it says this reason."""

    def ready(body: Json) -> Json:
        return condition(body, "Ready") or {}

    with service.watch() as watch:
        seen = watch.until(lambda body: ready(body).get("reason") == reason, 120)
    message = str(ready(seen.body)["message"])
    print(f"{reason}: {message}")
    return message
