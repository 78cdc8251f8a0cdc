"""The operator dies in the middle of something: what it began is finished once, and no request is lost."""

import time
from collections.abc import Iterator

import pytest

from e2e import manifests, release
from e2e.answers import summary
from e2e.exchange import Target
from e2e.kubectl import Kubectl
from e2e.load import Load, LoadPlan, numbered
from e2e.operator_pods import Operator
from e2e.service import Service, is_ready, wait_for
from e2e.sites import BoxSite, built_images
from e2e.warm_up import until_every_pod_answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STREAMS = 24
TOKENS = 100
STEP_S = 0.1
OWN = release.Release("pagefleet-mortal", shard="mortal")
"""Its death is no other story's."""


@pytest.fixture(scope="module")
def operator(place: BoxSite) -> Iterator[Operator]:
    release.install(place, built_images(), which=OWN)
    yield Operator(place, OWN)
    release.remove(place, OWN)


@pytest.fixture(scope="module")
def service(operator: Operator, kubectl: Kubectl) -> Service:
    service = Service(kubectl, "steady")
    kubectl.apply(manifests.text(manifests.paced("steady", STEP_S, shard=OWN.shard)))
    service.wait_until_ready(1, 90)
    return service


def test_a_scale_up_goes_on_and_nothing_is_doubled(service: Service, operator: Operator) -> None:
    with service.watch() as watch, service.watch_deployment() as deployment:
        service.scale(3)
        operator.kill()
        watch.until(lambda body: is_ready(body, 3), 120)
        assert max(seen.body["spec"]["replicas"] for seen in deployment.seen) == 3
        assert max(seen.body["status"].get("replicas", 0) for seen in deployment.seen) == 3
    assert len(service.pods()) == 3
    assert len(service.kubectl.items("replicasets")) == 1


def test_a_drain_goes_on_and_no_request_is_lost(service: Service, operator: Operator) -> None:
    until_every_pod_answers(service, service.pods())
    url = service.cluster_url()
    target = Target(url=lambda: url, model="steady")
    plan = LoadPlan(target=target, ask=numbered(TOKENS), clients=STREAMS, requests=STREAMS)
    with service.watch() as watch, service.watch_deployment() as deployment, Load.start(plan) as load:
        wait_for(
            "every stream has begun",
            lambda: (
                len(load.open_requests()) == STREAMS
                and all(tokens < TOKENS for tokens in load.open_requests().values())
            ),
            60,
            every_s=0.1,
        )
        started_s = time.monotonic()
        service.scale(1)
        wait_for("the drain has begun", lambda: any(not pod.serving for pod in service.pods()), 20, every_s=0.1)
        operator.kill()
        result = summary(load.wait())
        watch.until(lambda body: is_ready(body, 1), 60, started_s)
        deployment.until(lambda body: body["spec"]["replicas"] == 1, 10)
        assert min(seen.body["spec"]["replicas"] for seen in deployment.seen) == 1
    assert (result.answered, result.faults) == (STREAMS, {})
    wait_for("one pod is left", lambda: [pod.serving for pod in service.pods()] == [True], 30)


def test_of_two_operators_the_other_one_acts_within_15_s(service: Service, operator: Operator) -> None:
    operator.scale(2)
    try:
        wait_for("one of them leads", lambda: operator.leader() is not None, 20)
        leader = operator.leader()
        with service.watch_deployment() as deployment:
            killed_s = time.monotonic()
            operator.remove_at_once(str(leader))
            # until its process ends it may still act, and rightly, as the Lease is its own
            wait_for("the other one leads", lambda: operator.leader() not in {None, leader}, 15, every_s=0.1)
            service.scale(2)
            acted = deployment.until(lambda body: body["spec"]["replicas"] == 2, 30, since_s=killed_s)
            assert acted.at_s - killed_s < 15
        service.wait_until_ready(2, 90)
    finally:
        operator.scale(1)
