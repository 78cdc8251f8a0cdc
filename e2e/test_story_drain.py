"""A fixed service goes from three pods to one while answers are under way: each of them comes to its end."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from e2e import manifests
from e2e.answers import Answer, Ask, summary
from e2e.exchange import Target
from e2e.kubectl import Kubectl
from e2e.load import Load, LoadPlan
from e2e.operator_pods import Operator
from e2e.prometheus import Prometheus
from e2e.service import Pod, Service, is_ready, pod_load, wait_for
from e2e.sites import BoxSite
from pagefleet_api.metrics import NAMESPACE, SERVICE
from pagefleet_api.metrics import Engine as EngineMetrics
from pagefleet_api.metrics import Operator as OperatorMetrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

STREAMS = 200
LONG, LONG_TOKENS, SHORT_TOKENS = 60, 150, 12
TO_GO = 100
HELD_BY_CHOSEN = 20


def ask(number: int) -> Ask:
    """Long answers are spread over the first requests and the last ones, so that every pod gets some."""
    tokens = LONG_TOKENS if number % (STREAMS // LONG) == 0 and number < LONG * (STREAMS // LONG) else SHORT_TOKENS
    return Ask(f"{number}: tell me a story.", tokens)


class Run(NamedTuple):
    """The drain, as it was seen."""

    service: Service
    held_by_chosen: int
    """At least so many answers with 100 tokens or more to go were on the pods that had to leave."""
    answers: list[Answer]
    left: list[Pod]
    seconds: float


@pytest.fixture(scope="module")
def run(place: BoxSite, kubectl: Kubectl, prometheus: Prometheus) -> Iterator[Run]:
    service = Service(kubectl, "trio")
    engine = {"kvCache": {"size": "768Mi"}, "maxNumSeqs": 128}
    kubectl.apply(manifests.text(manifests.service("trio", engine=engine, replicas=3)))
    service.wait_until_ready(3, 150)
    url = service.cluster_url()
    target = Target(url=lambda: url, model="trio")
    with (
        service.watch() as watch,
        Load.start(LoadPlan(target=target, ask=ask, clients=STREAMS, requests=STREAMS)) as load,
    ):
        pods = service.pods()
        wait_for("the long answers are alone", lambda: len(load.open_requests()) <= LONG, 120, every_s=0.1)
        long_ones = sum(tokens >= TO_GO for tokens in load.open_requests().values())
        started_s = time.monotonic()
        service.scale(1)
        held = {pod.name: pod_load(pod).in_flight for pod in pods}
        watch.until(lambda body: body["status"].get("drainingReplicas") == 2, 15)
        stays = {pod.name for pod in service.pods() if pod.serving}
        answers = load.wait(240)
        watch.until(lambda body: is_ready(body, 1) and not body["status"].get("drainingReplicas"), 60, started_s)
        seconds = time.monotonic() - started_s
        wait_for("two pods are gone", lambda: len(service.pods()) == 1, 60)
        time.sleep(2)  # the last counts are scraped
        held_by_staying = sum(held[name] for name in stays)
        yield Run(service, long_ones - held_by_staying, answers, service.pods(), seconds)


def test_the_pods_that_leave_hold_many_long_answers_when_the_drain_starts(run: Run) -> None:
    assert run.held_by_chosen >= HELD_BY_CHOSEN


def test_every_client_gets_all_its_tokens(run: Run) -> None:
    result = summary(run.answers)
    assert result.faults == {}
    assert (result.requests, result.answered) == (STREAMS, STREAMS)
    assert all(answer.completion_tokens == answer.asked_tokens for answer in run.answers)
    assert result.finish_reasons == {"length": STREAMS}


def test_nothing_is_counted_as_aborted(run: Run, operator: Operator, prometheus: Prometheus) -> None:
    where = {NAMESPACE: run.service.kubectl.namespace, SERVICE: run.service.name}
    assert operator.metric(OperatorMetrics.DRAIN_ABORTED.name, **where) in {None, 0.0}
    drains = operator.metric(f"{OperatorMetrics.DRAIN.name}_count", **where)
    assert drains == 2
    chosen = ",".join(f'{key}="{value}"' for key, value in where.items())
    ended = prometheus.query(f"sum by (outcome) (max_over_time({EngineMetrics.REQUESTS.name}{{{chosen}}}[10m]))")
    counted = {sample.labels["outcome"]: sample.value for sample in ended}
    assert counted == {"length": STREAMS, "stop": 0, "abort": 0, "error": 0}


def test_an_event_tells_how_each_drain_went(run: Run) -> None:
    told = [event["message"] for event in run.service.events() if event["reason"] == "Drained"]
    assert told and all("0 aborted" in message for message in told)


def test_the_drain_ends_soon_after_the_last_answer(run: Run) -> None:
    assert run.seconds < 120
    assert [(pod.ready, pod.serving, pod.restarts) for pod in run.left] == [(True, True, 0)]
