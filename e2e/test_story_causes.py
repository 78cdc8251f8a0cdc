"""Services that cannot come up say why, within five seconds of whoever knows it, and are well after the fix."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from e2e import broken, manifests, spare_node
from e2e.broken import DEVICE, FAULTS, Broken
from e2e.devices import on_nodes
from e2e.kubectl import Kubectl, Seen, Watch
from e2e.service import KIND, Service, condition, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROMPT_S = 5.0
STEP_S = 0.1
_KINDS = ("pods", "events", "deployments", KIND)
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass
class Story:
    """What was seen from the moment that all services were made."""

    places: dict[str, Kubectl]
    """Where each service is: the quota has a namespace of its own."""
    watches: dict[tuple[str, str], Watch]
    began_s: float

    def first(self, one: Broken, kind: str, holds: broken.Known, timeout_s: float, since_s: float = 0.0) -> Seen:
        watch = self.watches[self.places[one.name].namespace, kind]
        return watch.until(lambda body: one.is_its(body) and holds(body), timeout_s, since_s)


@pytest.fixture(scope="module")
def second(place: BoxSite, kubectl: Kubectl) -> Iterator[Kubectl]:
    """A namespace beside the story's own."""
    other = kubectl.within(f"{kubectl.namespace}-quota")
    place.kubectl.run("delete", "namespace", other.namespace, "--ignore-not-found", timeout_s=180)
    place.kubectl.run("create", "namespace", other.namespace)
    yield other
    place.kubectl.run("delete", "namespace", other.namespace, "--wait=false")


@pytest.fixture(scope="module")
def story(place: BoxSite, kubectl: Kubectl, second: Kubectl) -> Iterator[Story]:
    """All faults at once, with watches on everything that tells of them."""
    places = {one.name: second if one.name == "quota" else kubectl for one in FAULTS}
    with contextlib.ExitStack() as stack:
        stack.callback(broken.admission_is_gone, kubectl)
        broken.admission_is_gone(kubectl)
        for body in broken.ADMISSION:
            kubectl.apply(manifests.text(body))
        second.apply(manifests.text(broken.quota()))
        stack.enter_context(on_nodes(place, DEVICE, 8))
        kubectl.apply(manifests.text(broken.takes_devices("taken", 5)))
        wait_for("the policy counts", lambda: broken.refuses_pods(second), 30)
        watches = {
            (space.namespace, kind): stack.enter_context(Watch(space, kind))
            for space in (kubectl, second)
            for kind in _KINDS
        }
        began_s = time.monotonic()
        for one in FAULTS:
            places[one.name].apply(one.manifest())
        yield Story(places, watches, began_s)


@pytest.mark.parametrize("one", FAULTS, ids=[one.name for one in FAULTS])
def test_each_service_names_its_cause_within_five_seconds(story: Story, one: Broken) -> None:
    known = story.first(one, one.watched, one.known, 60)
    told = story.first(one, KIND, broken.told(one), 30)
    print(
        f"{one.name}: {one.reason} {told.at_s - known.at_s:+.1f} s, {told.at_s - story.began_s:.1f} s after it was made"
    )
    assert told.at_s - known.at_s < PROMPT_S
    ready = condition(told.body, "Ready") or {}
    print(ready["message"])
    assert ready["status"] == "False"
    assert (
        ready["observedGeneration"] == told.body["metadata"]["generation"] == told.body["status"]["observedGeneration"]
    )
    latest = story.first(one, KIND, lambda body: _says(body, one.words), 20)
    assert [w for w in one.words if w not in (condition(latest.body, "Ready") or {})["message"]] == []


def _says(body: dict[str, object], words: tuple[str, ...]) -> bool:
    message = (condition(body, "Ready") or {}).get("message", "")
    return all(word in message for word in words)


def test_every_cause_is_one_event(story: Story) -> None:
    for one in FAULTS:
        events = Service(story.places[one.name], one.name).events()
        assert [event["reason"] for event in events] == ["NotReady"]
        assert events[0]["message"].startswith(f"{one.reason}: ")


def test_each_cause_is_gone_after_its_fix_and_until_then_tries_of_an_image_are_counted(story: Story) -> None:
    began_s = {}
    for one in sorted(FAULTS, key=lambda one: one.name == "pull"):
        if one.name == "pull":
            story.first(one, KIND, lambda body: _says(body, ("tried at least 2 times",)), 60)
        one.mend(story.places[one.name])
        began_s[one.name] = time.monotonic()
    for one in FAULTS:
        seen = story.first(one, KIND, broken.mended(one), 90, began_s[one.name])
        print(f"{one.name}: {seen.at_s - began_s[one.name]:.1f} s after the fix")
        story.places[one.name].run("delete", KIND, one.name, "--wait=false")


@pytest.fixture(scope="module")
def spare(place: BoxSite) -> Iterator[str]:
    """The name of a third node, which may be lost without another story's loss."""
    with spare_node.running(place) as name:
        yield name


@pytest.fixture(scope="module")
def pair(spare: str, kubectl: Kubectl) -> Service:
    """Two pods, one of them on the spare node, beside a Service whose name makes variables like the engine's own."""
    kubectl.run("create", "service", "clusterip", "pagefleet-api-key", "--tcp=80")
    service = Service(kubectl, "pair")
    pod = spare_node.preferred(labels.selector("pair"))
    kubectl.apply(manifests.text(manifests.paced("pair", STEP_S, pod=pod, replicas=2)))
    service.wait_until_ready(2, 90)
    return service


def test_a_services_name_puts_nothing_into_the_engines_environment(pair: Service) -> None:
    words = "import os; print(*(name for name in os.environ if name.startswith('PAGEFLEET')))"
    assert pair.kubectl.run("exec", pair.pods()[0].name, "--", "python3", "-c", words).split() == []


def test_a_lost_node_is_named_and_its_pod_replaced(place: BoxSite, pair: Service, spare: str) -> None:
    kubectl, node = pair.kubectl, spare
    (lost,) = [pod for pod in pair.pods() if pod.node == node]

    def successor_is_placed() -> bool:
        return sum(pod.node not in {None, node} and not pod.terminating for pod in pair.pods()) == 2

    with pair.watch() as watch, Watch(kubectl, "pod", lost.name) as pods:
        place.box.kill_node(node)
        known = pods.until(lambda body: (condition(body, "Ready") or {})["status"] == "False", 60)
        told = watch.until(lambda body: f"its node {node} is away" in str(condition(body, "Ready")), 20)
        ready = condition(told.body, "Ready") or {}
        print(f"node lost: {told.at_s - known.at_s:+.1f} s: {ready['message']}")
        assert told.at_s - known.at_s < PROMPT_S
        assert ready["status"] == "True", "the other pod serves"
        kubectl.run("taint", "nodes", node, f"{_OUT_OF_SERVICE}=nodeshutdown:NoExecute")
        wait_for("the lost pod has a successor", successor_is_placed, 30)
        pair.wait_until_ready(2, 60)
