"""A fixed service goes from three pods to one while answers are under way: each of them comes to its end."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e import manifests
from e2e.answers import Answer, Ask, summary
from e2e.exchange import Target
from e2e.kubectl import Json, Kubectl, followed_logs
from e2e.load import Load, LoadPlan
from e2e.operator_pods import Operator
from e2e.prometheus import Prometheus
from e2e.service import Pod, Service, is_ready, pod_load, wait_for
from e2e.sites import BoxSite
from e2e.warm_up import until_every_pod_answers
from pagefleet_api.metrics import NAMESPACE, SERVICE
from pagefleet_api.metrics import Engine as EngineMetrics
from pagefleet_api.metrics import Operator as OperatorMetrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

STREAMS = 200
STEP_S = 0.2
LONG, LONG_TOKENS, SHORT_TOKENS = 48, 150, 50
TO_GO = 100
HELD_BY_LEAVING = 20


def ask(number: int) -> Ask:
    """Long answers among short ones, so that every pod gets some of both."""
    is_long = number * LONG // STREAMS != (number + 1) * LONG // STREAMS
    return Ask(f"{number}: a story, please.", LONG_TOKENS if is_long else SHORT_TOKENS)


class Run(NamedTuple):
    """The drain, as it was seen; times in seconds since the load's start."""

    service: Service
    drain_started_s: float
    seconds: float
    """How long it took."""
    answers: list[Answer]
    served_by: dict[str, str]
    """The pod of each request, by the server's name for it."""
    left: list[Pod]
    warm_ups: int
    """Requests before the load."""
    outcomes: Counter[str]
    """How the load's answers ended, as the pods' logs say."""


@pytest.fixture(scope="module")
def run(place: BoxSite, kubectl: Kubectl, prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Run:
    service = Service(kubectl, "trio")
    engine, drain = {"maxNumSeqs": 128}, {"timeoutSeconds": 300}
    kubectl.apply(manifests.text(manifests.paced("trio", STEP_S, engine=engine, replicas=3, drain=drain)))
    service.wait_until_ready(3, 150)
    pods = service.pods()
    warm_ups = until_every_pod_answers(service, pods)
    with followed_logs(kubectl, [pod.name for pod in pods], tmp_path_factory.mktemp("logs")) as logs:
        drain_started_s, seconds, answers = drain_under_load(service, pods)
        ended = {pod: list(answers_in(path)) for pod, path in logs.items()}
        served_by = {answer["request"]: pod for pod, told in ended.items() for answer in told}
        outcomes = Counter(outcome for told in ended.values() for answer in told for outcome in answer["outcomes"])
    return Run(service, drain_started_s, seconds, answers, served_by, service.pods(), warm_ups, outcomes)


def drain_under_load(service: Service, pods: list[Pod]) -> tuple[float, float, list[Answer]]:
    """Scale to one pod while every stream is open; when it began, how long it took, and every answer."""
    url = service.cluster_url()
    plan = LoadPlan(target=Target(url=lambda: url, model=service.name), ask=ask, clients=STREAMS, requests=STREAMS)
    with service.watch() as watch, Load.start(plan) as load:
        wait_for("every stream is open", lambda: sum(pod_load(p).in_flight for p in pods) == STREAMS, 30, every_s=0.1)
        started_s = time.monotonic()
        service.scale(1)
        answers = load.wait()
        watch.until(lambda body: is_ready(body, 1), 60, started_s)
        seconds = time.monotonic() - started_s
        wait_for("two pods are gone", lambda: len(service.pods()) == 1, 60)
    return started_s - load.started_s, seconds, answers


def answers_in(log: Path) -> Iterator[Json]:
    """The requests whose end a pod's log tells."""
    for line in log.read_text().splitlines():
        if '"request_finished"' in line:
            yield json.loads(line)


def test_the_pods_that_leave_hold_many_long_answers_when_the_drain_starts(run: Run) -> None:
    stays = run.left[0].name
    to_go = {
        answer.number: sum(at_s > run.drain_started_s for at_s in answer.token_times_s)
        for answer in run.answers
        if run.served_by[str(answer.server_id)] != stays
    }
    assert sum(tokens >= TO_GO for tokens in to_go.values()) >= HELD_BY_LEAVING


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
    whole = counted.pop("length")
    assert counted == {"stop": 0, "abort": 0, "error": 0}
    # A pod may have gone before its last answers were scraped; its log has them all.
    assert 0 < whole <= STREAMS + run.warm_ups
    assert run.outcomes["length"] >= STREAMS and set(run.outcomes) == {"length"}, run.outcomes


def test_an_event_tells_how_each_drain_went(run: Run) -> None:
    told = [event["message"] for event in run.service.events() if event["reason"] == "Drained"]
    assert told and all("0 aborted" in message for message in told)


def test_the_drain_ends_soon_after_the_last_answer(run: Run) -> None:
    assert run.seconds - max(answer.ended_s - run.drain_started_s for answer in run.answers) < 20
    assert [(pod.ready, pod.serving, pod.restarts) for pod in run.left] == [(True, True, 0)]
