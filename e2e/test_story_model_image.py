"""A model in an image of nothing but files, on nodes that cannot mount it: a wrong path is named, the right one serves.

On nodes that can: `e2e/runtimes/image_volume_story.py`.
"""

import json

import pytest

from e2e import manifests, model_image
from e2e.demo_steps import chat
from e2e.kubectl import Json, Kubectl, Watch
from e2e.service import KIND, Service, condition, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels
from pagefleet_api.reasons import Reason

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

NAME = "copied"
PROMPT_S = 5.0


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    """With a path that the image does not have."""
    model_image.load(place)
    kubectl.apply(manifests.text(manifests.service(NAME, model={"uri": model_image.uri(model_image.NO_FOLDER)})))
    return Service(kubectl, NAME)


def _failed(pod: Json) -> bool:
    """Whether the copy has ended at least once."""
    statuses = pod.get("status", {}).get("initContainerStatuses", ())
    copies = [status for status in statuses if status["name"] == labels.COPY_CONTAINER]
    return any("terminated" in {**status.get("lastState", {}), **status.get("state", {})} for status in copies)


def _says(body: Json) -> tuple[str, str]:
    found = condition(body, "Ready") or {}
    return found.get("reason", ""), found.get("message", "")


def test_a_path_that_the_image_does_not_have_is_named_with_what_it_has(service: Service, kubectl: Kubectl) -> None:
    with Watch(kubectl, "pods") as pods, service.watch() as watch:
        ended = pods.until(_failed, 90)
        told = watch.until(lambda body: _says(body)[0] == Reason.MODEL_FETCH_FAILED, 60)
    print(f"told {told.at_s - ended.at_s:+.1f} s after the copy had failed")
    assert told.at_s - ended.at_s < 3 * PROMPT_S
    assert "the image has no /app/models; /app has model" in _says(told.body)[1], _says(told.body)


def _use(kubectl: Kubectl, uri: str) -> None:
    patch = json.dumps({"spec": {"model": {"uri": uri}}})
    kubectl.run("patch", KIND, NAME, "--type=merge", "-p", patch)


def test_an_image_in_which_nothing_can_start_is_told_though_its_container_ended_well(
    service: Service, kubectl: Kubectl
) -> None:
    with service.watch() as watch:
        _use(kubectl, model_image.uri(model_image.FILE, model_image.LISTING_IMAGE))
        told = watch.until(lambda body: "LD_TRACE_LOADED_OBJECTS" in _says(body)[1], 90)
    assert _says(told.body)[0] == Reason.MODEL_FETCH_FAILED, _says(told.body)


def test_with_the_right_path_it_serves_what_was_copied(service: Service, kubectl: Kubectl) -> None:
    _use(kubectl, model_image.uri(model_image.FILE))
    service.wait_until_ready(1, 120)
    wait_for("it answers", lambda: _answers(service), 20)
    (pod,) = [pod for pod in service.pods() if pod.ready and not pod.terminating]
    (copy,) = [each for each in pod.body["status"]["initContainerStatuses"] if each["name"] == labels.COPY_CONTAINER]
    assert copy["state"]["terminated"]["message"].startswith("copied 1 files, "), copy
    volumes = {volume["name"]: volume for volume in pod.body["spec"]["volumes"]}
    assert "emptyDir" in volumes["models"], volumes


def _answers(service: Service) -> bool:
    """A ClusterIP follows its pods a moment late."""
    try:
        return bool("".join(chat(service.cluster_url(), NAME, "Hello!")))
    except OSError:
        return False
