"""Engines that compute: one dies without a word while it streams, and one leaves when its last answer is whole."""

import time

import pytest

from e2e import manifests
from e2e.answers import Fault, summary
from e2e.exchange import Target
from e2e.kubectl import Kubectl
from e2e.load import Load, LoadPlan, numbered
from e2e.operator_pods import kill_container
from e2e.service import Service, condition, is_ready, pod_load, wait_for
from e2e.sites import BoxSite
from e2e.warm_up import until_every_pod_answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STREAMS = 16
TOKENS = 100


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    service = Service(kubectl, "pair")
    kubectl.apply(manifests.text(manifests.service("pair", replicas=2)))
    service.wait_until_ready(2, 120)
    until_every_pod_answers(service, service.pods())
    return service


def streams(service: Service) -> Load:
    url = service.cluster_url()
    target = Target(url=lambda: url, model=service.name)
    return Load.start(LoadPlan(target=target, ask=numbered(TOKENS), clients=STREAMS, requests=STREAMS))


def wait_for_streams_on_both(service: Service, load: Load) -> None:
    """Every stream has begun, and each pod has some."""
    pods = service.pods()

    def holds() -> bool:
        held = [pod_load(pod).in_flight for pod in pods]
        return sum(held) == STREAMS and all(held) and all(left < TOKENS for left in load.open_requests().values())

    wait_for("every stream has begun, on both pods", holds, 120, every_s=0.1)


def test_a_killed_engine_is_told_and_replaced_and_the_other_pods_streams_go_on(
    place: BoxSite, service: Service
) -> None:
    with service.watch() as watch, streams(service) as load:
        victim, _ = service.pods()
        wait_for_streams_on_both(service, load)
        held = pod_load(victim).in_flight
        assert 0 < held < STREAMS
        killed_s = time.monotonic()
        kill_container(place, victim.body)
        wait_for("the streams of the dead engine end", lambda: len(load.answers) >= held, 10, every_s=0.1)
        broken = [answer for answer in load.answers if answer.fault is not None]
        assert len(broken) == held
        answers = load.wait()
        assert {a.fault for a in answers} <= {None, Fault.RESET, Fault.NOT_DONE}
        assert sum(a.fault is None for a in answers) == STREAMS - held, "the other pod's streams all came to their end"
        told = watch.until(lambda body: body["status"].get("readyReplicas") == 1, 10, since_s=killed_s)
        assert told.body["status"]["ready"] == "1/2"
        watch.until(lambda body: is_ready(body, 2), 90, since_s=told.at_s)
    restarted = {pod.name: pod.restarts for pod in service.pods()}
    assert sum(restarted.values()) == 1 or victim.name not in restarted
    assert (condition(service.object(), "Ready") or {})["status"] == "True"


def test_an_engine_that_leaves_answers_everything_first(service: Service) -> None:
    until_every_pod_answers(service, service.pods())
    with service.watch() as watch, streams(service) as load:
        wait_for_streams_on_both(service, load)
        began_s = time.monotonic()
        service.scale(1)
        result = summary(load.wait())
        watch.until(lambda body: is_ready(body, 1), 60, since_s=began_s)
    assert (result.answered, result.faults) == (STREAMS, {})
    wait_for("one pod is left", lambda: len(service.pods()) == 1, 60)
