"""Steady load on an autoscaled service: the right number, held, and back; and the dashboard tells the same story."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from e2e import panels, release
from e2e.answers import Answer, Summary, summary
from e2e.exchange import Target
from e2e.kubectl import Kubectl, Seen
from e2e.load import Load, LoadPlan, numbered
from e2e.prometheus import Prometheus
from e2e.service import Service, condition, is_ready
from e2e.sites import CHECKOUT, BoxSite

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

CLIENTS = 20
REPLICAS = 3
HELD_S = 40.0
TOKENS = 32


class Run(NamedTuple):
    """What was seen from the first request until one pod was left."""

    service: Service
    statuses: list[Seen]
    deployments: list[Seen]
    answers: list[Answer]
    settled_s: float
    """When three pods were ready and wanted, and the load's end; both of `time.monotonic`."""
    load_ended_s: float
    started_wall_s: float
    ended_wall_s: float

    @property
    def counted(self) -> Summary:
        return summary(self.answers)


def desired(seen: Seen) -> int | None:
    number: int | None = seen.body.get("status", {}).get("autoscaling", {}).get("desiredReplicas")
    return number


@pytest.fixture(scope="module")
def run(place: BoxSite, kubectl: Kubectl, prometheus: Prometheus) -> Iterator[Run]:
    """The example under 20 clients until it has held 3 replicas for 40 s, and then alone until it is back at 1."""
    service = Service(kubectl, "autoscaled")
    kubectl.apply(release.example("autoscaled.yaml"))
    service.wait_until_ready(1, 90)
    url = service.cluster_url()
    time.sleep(3)  # Prometheus finds the pod before its first request
    started_wall_s = time.time()
    plan = LoadPlan(target=Target(url=lambda: url, model=service.model), ask=numbered(TOKENS), clients=CLIENTS)
    with service.watch() as watch, service.watch_deployment() as deployment, Load.start(plan) as load:
        settled = watch.until(lambda body: is_ready(body, REPLICAS), 120)
        time.sleep(max(settled.at_s + HELD_S - time.monotonic(), 0))
        load_ended_s = time.monotonic()
        answers = load.wait()
        watch.until(lambda body: is_ready(body, 1), 120, load_ended_s)
        time.sleep(3)  # the last pods' last counts are scraped
        yield Run(
            service, watch.seen, deployment.seen, answers, settled.at_s, load_ended_s, started_wall_s, time.time()
        )


def test_every_request_is_answered_in_full(run: Run) -> None:
    assert run.counted.faults == {}
    assert run.counted.requests >= CLIENTS
    assert run.counted.completion_tokens == run.counted.requests * TOKENS


def test_it_never_asks_for_more_than_three_pods(run: Run) -> None:
    assert {desired(seen) for seen in run.statuses} <= {None, 1, 2, REPLICAS}
    assert max(seen.body["spec"]["replicas"] for seen in run.deployments) == REPLICAS
    assert max(seen.body["status"].get("replicas", 0) for seen in run.deployments) == REPLICAS


def test_three_pods_are_held_while_the_load_lasts(run: Run) -> None:
    during = [seen for seen in run.statuses if run.settled_s <= seen.at_s <= run.load_ended_s]
    assert {desired(seen) for seen in during} == {REPLICAS}
    assert all(seen.body["status"].get("drainingReplicas", 0) == 0 for seen in during)
    held = [seen for seen in run.deployments if run.settled_s <= seen.at_s <= run.load_ended_s]
    assert {seen.body["spec"]["replicas"] for seen in held} <= {REPLICAS}


def test_after_the_load_one_pod_is_left_and_nothing_was_cut(run: Run) -> None:
    status = run.service.status
    assert (status["replicas"], status["readyReplicas"], status["autoscaling"]["desiredReplicas"]) == (1, 1, 1)
    assert len([pod for pod in run.service.pods() if not pod.terminating]) == 1
    told = [event["message"] for event in run.service.events() if event["reason"] == "Drained"]
    assert told and all("0 aborted" in message for message in told)


def test_each_change_is_explained_with_its_numbers(run: Run) -> None:
    history = run.service.status["autoscaling"]["history"]
    assert (history[0]["desired"], max(decision["desired"] for decision in history)) == (1, REPLICAS)
    up = next(d for d in history if d["desired"] == REPLICAS)
    waiting = next(reading for reading in up["readings"] if reading["type"] == "WaitingRequests")
    assert waiting["proposal"] == REPLICAS and float(waiting["value"]) > 0 and waiting["target"]
    reasons = {event["reason"] for event in run.service.events()}
    assert {"ScaledUp", "ScaledDown"} <= reasons
    assert (condition(run.service.object(), "ScalingActive") or {}).get("status") == "True"


def test_kubectl_explains_the_number_by_way_of_the_api_server(run: Run, tmp_path: Path) -> None:
    kubectl, plugin = run.service.kubectl, tmp_path / "kubectl-pagefleet"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m pagefleet_cli "$@"\n')
    plugin.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command = [kubectl.binary, "pagefleet", "explain", "infs/autoscaled", "-n", kubectl.namespace, "-o", "json"]
    environment = {**kubectl.environment, "PATH": path}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert told["source"] == "operator", told["sourceMessage"]
    assert told["decision"]["desired"] == 1
    assert {step["type"] for step in told["nextSteps"]["up"]} == {"WaitingRequests", "KVCacheUsage"}
    assert told["nextSteps"]["downHeldBy"] == ["minReplicas is 1"]
    assert max(change["desired"] for change in told["changes"]) == REPLICAS


def dashboard_queries() -> list[panels.PanelQuery]:
    return panels.queries(json.loads((CHECKOUT / "dashboards" / "fleet.json").read_text()))


def variables(run: Run) -> dict[str, str]:
    return {
        "namespace": run.service.kubectl.namespace,
        "service": run.service.name,
        "__range": f"{run.ended_wall_s - run.started_wall_s + 2:.0f}s",
        "__interval": "1s",
        "__rate_interval": "15s",
    }


@pytest.mark.parametrize("query", dashboard_queries(), ids=lambda q: f"{q.title} {q.legend}".strip())
def test_every_query_of_the_dashboard_runs(run: Run, prometheus: Prometheus, query: panels.PanelQuery) -> None:
    expression = query.filled(variables(run))
    prometheus.query(expression, run.ended_wall_s)
    prometheus.query_range(expression, run.started_wall_s, run.ended_wall_s, 5)


def test_the_dashboards_totals_equal_what_the_clients_counted(run: Run, prometheus: Prometheus) -> None:
    shown = {}
    for query in dashboard_queries():
        if query.title in {"Requests", "Errors", "Rejected", "Prompt tokens", "Generated tokens"}:
            samples = prometheus.query(query.filled(variables(run)), run.ended_wall_s)
            shown[query.title] = [sample.value for sample in samples]
    assert shown == {
        "Requests": [run.counted.requests],
        "Errors": [0],
        "Rejected": [0],
        "Prompt tokens": [run.counted.prompt_tokens],
        "Generated tokens": [run.counted.completion_tokens],
    }
