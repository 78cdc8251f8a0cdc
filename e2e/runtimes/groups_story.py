"""Groups of real pods under the real controller of LWS: no answer is cut off when one leaves or loses a worker.

The engines are paced ones of ours in the place of a user's, so a worker computes nothing for its leader. Outside of
`make test` for the minutes that LWS takes to compile: `make test-pipeline`.
"""

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from e2e import manifests
from e2e.answers import Answer, Ask, summary
from e2e.cluster import images, layers, oci
from e2e.exchange import Target
from e2e.kubectl import Json, Kubectl
from e2e.load import Load, LoadPlan
from e2e.runtimes.engine_pods import workers
from e2e.service import Pod, Service, get_text, is_ready, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels
from tests.pagefleet_operator.apiserver import lws_controller
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NAME, STREAMS, TOKENS, STEP_S = "pair", 200, 80, 0.25
IMAGE = "localhost/engine-with-shell:test"
_SHELL = ("bash", "coreutils", "libtinfo6", "libacl1", "libattr1", "libgmp10", "libselinux1", "libpcre2-8-0")
"""Workers wait for their leader by it; our own images have none."""
TO_GO = 20
"""Tokens that an answer still has to come when its group begins to leave."""
ENGINE = {
    "runtime": "custom",
    "image": IMAGE,
    "parallelism": {"pipeline": 2},
    "extraArgs": [
        f"--model={manifests.MODEL}",
        "--device=paced",
        "--paced-costs=/etc/pagefleet/pace/costs.json",
        "--port=$(PAGEFLEET_PORT)",
        "--drain-timeout-s=$(PAGEFLEET_DRAIN_TIMEOUT)",
        "--served-model-name=$(PAGEFLEET_SERVED_NAME).$(LWS_WORKER_INDEX).$(LWS_LEADER_ADDRESS)",
    ],
    "custom": {
        "port": labels.ENGINE_PORT,
        "healthPath": "/readyz",
        "metricsPath": "/metrics",
        "metrics": {"running": "pagefleet_requests_running", "waiting": "pagefleet_requests_waiting"},
    },
}


class Left(NamedTuple):
    """Streams while a group left; times in seconds since the load's start."""

    answers: list[Answer]
    held: int
    """Answers with tokens to come, on the leader that left, when it began to."""
    worker_gone_s: float


def body() -> Json:
    """Two groups of two pods, without GPUs."""
    listed = manifests.paced(NAME, STEP_S, replicas=2)
    _, own = listed["items"]
    own["spec"] |= {"model": {"uri": "file:///in/the/arguments", "servedName": "tiny"}, "engine": ENGINE}
    own["spec"]["resources"] |= {"gpu": {"count": 0}}
    return listed


def image() -> oci.Image:
    """Our engine's, with a shell in it."""
    plan = images.PLANS["engine"]
    _, *others = plan.recipes()
    stack = [images.layer_of(recipe, print) for recipe in (layers.base(_SHELL), *others)]
    return oci.write_image(images.blobs_folder(), IMAGE, stack, plan.program)


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = image()
    for node in place.box.nodes():
        place.box.load_image(node, made)
    with lws_controller.running(place.box, tmp_path_factory.mktemp("lws"), free_port(), free_port()):
        kubectl.apply(manifests.text(body()))
        found = Service(kubectl, NAME)
        found.wait_until_ready(2, 240)
        yield found
        kubectl.run("delete", "infs", NAME)
        wait_for("its pods are gone", lambda: not workers(found) and not found.pods(), 180)


def told_name(pod: Pod) -> str:
    """What a pod calls its model."""
    found = re.search('"id": ?"([^"]+)"', get_text(f"http://{pod.address}:{labels.ENGINE_PORT}/v1/models"))
    assert found is not None
    return found[1]


def held_by(pod: Pod) -> int:
    """Requests that a pod has now."""
    text = get_text(f"http://{pod.address}:{labels.ENGINE_PORT}/metrics")
    told = re.findall(r"^pagefleet_requests_(?:running|waiting)(?:{.*})? (\S+)$", text, re.M)
    return sum(int(float(number)) for number in told)


def streams(service: Service, leader: Pod) -> LoadPlan:
    url = f"http://{leader.address}:{labels.ENGINE_PORT}/v1"
    target = Target(url=lambda: url, model=told_name(leader), request_timeout_s=300)
    return LoadPlan(target=target, ask=lambda n: Ask(f"{n}: a story", TOKENS), clients=STREAMS, requests=STREAMS)


def left(load: Load, leader: Pod, gone: Pod, service: Service) -> Left:
    """What became of the streams, and when that worker was gone."""
    held = held_by(leader)
    wait_for("the worker is gone", lambda: gone.body["metadata"]["uid"] not in uids(service), 240, every_s=0.3)
    gone_s = time.monotonic() - load.started_s
    return Left(load.wait(180), held, gone_s)


def uids(service: Service) -> set[str]:
    return {str(pod.body["metadata"]["uid"]) for pod in (*service.pods(), *workers(service))}


def when_all_are_open(load: Load, leader: Pod) -> None:
    wait_for("every stream is open", lambda: held_by(leader) == STREAMS, 60, every_s=0.2)
    assert min(load.open_requests().values()) >= TO_GO


@pytest.fixture(scope="module")
def names(service: Service) -> list[str]:
    """What each pod was told of its group, the first group's pods first."""
    first, second = sorted(service.pods(), key=lambda pod: pod.name)
    third, fourth = workers(service)
    return [told_name(pod) for pod in (first, third, second, fourth)]


@pytest.fixture(scope="module")
def scaled_down(service: Service, names: list[str]) -> Left:
    """The second of two groups leaves while its streams are open."""
    leader, worker = max(service.pods(), key=lambda pod: pod.name), workers(service)[-1]
    with service.watch() as watch, Load.start(streams(service, leader)) as load:
        when_all_are_open(load, leader)
        service.scale(1)
        found = left(load, leader, worker, service)
        watch.until(lambda each: is_ready(each, 1), 120, load.started_s)
    return found


@pytest.fixture(scope="module")
def lost(service: Service, scaled_down: Left) -> Left:
    """The worker of the last group is deleted, as where its node is drained, while its leader's streams are open."""
    (leader,), (worker,) = service.pods(), workers(service)
    with Load.start(streams(service, leader)) as load:
        when_all_are_open(load, leader)
        service.kubectl.run("delete", "pod", worker.name, "--wait=false")
        return left(load, leader, worker, service)


def test_each_pod_is_told_its_place_and_its_leader(names: list[str], kubectl: Kubectl) -> None:
    group_set = labels.group_set_name(NAME)
    assert names == [
        f"tiny.{worker}.{group_set}-{group}.{group_set}.{kubectl.namespace}" for group in (0, 1) for worker in (0, 1)
    ]


def test_every_client_of_a_group_that_leaves_gets_all_its_tokens(scaled_down: Left, service: Service) -> None:
    whole(scaled_down)
    told = [event["message"] for event in service.events() if event["reason"].startswith("Drain")]
    assert any("0 aborted" in message for message in told), told


def test_a_worker_that_is_deleted_outlives_the_answers_of_its_leader(lost: Left) -> None:
    whole(lost)
    last_s = max(answer.ended_s for answer in lost.answers)
    print(f"last token after {last_s:.1f} s, worker gone after {lost.worker_gone_s:.1f} s")
    assert lost.worker_gone_s >= last_s


def test_the_group_that_lost_it_is_made_anew(service: Service, lost: Left) -> None:
    service.wait_until_ready(1, 120)
    assert len(workers(service)) == 1


def whole(found: Left) -> None:
    """No stream was cut off."""
    result = summary(found.answers)
    print(f"{found.held} answers held\n{result}")
    assert found.held == STREAMS
    assert result.faults == {}
    assert (result.requests, result.answered) == (STREAMS, STREAMS)
