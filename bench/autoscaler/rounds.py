"""Steps of load on a service of a real cluster, one after the other."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from bench.autoscaler import subjects
from bench.autoscaler.rows import Round, slo_lost_s
from bench.autoscaler.subjects import BASE_CLIENTS, NAME, NAMESPACE, STEP_CLIENTS, STEP_PODS, Scaler
from bench.autoscaler.validation import Level, Record, arrivals, mean_token_s, moments
from e2e import manifests
from e2e.answers import Answer
from e2e.exchange import Target
from e2e.kubectl import Json, Kubectl, Seen, Watch
from e2e.load import Load, LoadPlan, numbered
from e2e.progress import Progress
from e2e.service import Service, condition, get_text, is_ready, wait_for
from pagefleet_api import labels

TOKENS = 400
SLO_TIMES = 2.0
"""An answer may take so many times what the median one took before the step."""
HOLD_S, CALM_S = 12.0, 6.0


class Measured(NamedTuple):
    """Rounds under one scaler, the record of each, and the service as it was after them."""

    rounds: Sequence[Round]
    records: Sequence[Record]
    service: Json


@contextmanager
def _load(service: Service, url: str, clients: int) -> Iterator[Load]:
    target = Target(url=lambda: url, model=service.name, stream=False)
    with Load.start(LoadPlan(target=target, ask=numbered(TOKENS), clients=clients)) as load:
        yield load


def one_round(service: Service, url: str) -> tuple[Round, Record]:
    """Calm, step, hold, and back to one pod."""
    with service.watch_deployment() as deployment, service.watch() as status, _load(service, url, BASE_CLIENTS) as base:
        time.sleep(CALM_S)
        usual_s = statistics.median(answer.ended_s - answer.started_s for answer in base.answers)
        with _load(service, url, STEP_CLIENTS) as step:
            stepped_s = time.monotonic()
            up = deployment.until(lambda body: body["spec"]["replicas"] >= STEP_PODS, 120, stepped_s)
            status.until(lambda body: is_ready(body, STEP_PODS), 120, stepped_s)
            time.sleep(HOLD_S)
            token_s = _token_s(service)
            stepped = step.wait()
        ended_s = time.monotonic()
        down = status.until(lambda body: is_ready(body, 1), 180, ended_s)
        based = base.wait()
        most = max(int(seen.body["spec"]["replicas"]) for seen in deployment.seen if seen.at_s >= stepped_s)
        record = _record(deployment, status, token_s, (base, based), (step, stepped))
    done = Round(
        up_s=round(up.at_s - stepped_s, 2),
        most_replicas=most,
        slo_lost_s=slo_lost_s(stepped, SLO_TIMES * usual_s),
        down_s=round(down.at_s - ended_s, 2),
        scale_downs=most - 1,
        requests=len(stepped) + len(based),
        cut=sum(answer.fault is not None for answer in (*stepped, *based)),
    )
    return done, record


def _token_s(service: Service) -> float | None:
    ready = [pod for pod in service.pods() if pod.ready]
    try:
        return mean_token_s([get_text(f"http://{pod.address}:{labels.ADMIN_PORT}/metrics") for pod in ready])
    except OSError:
        return None


def _record(deployment: Watch, status: Watch, token_s: float | None, *loads: tuple[Load, Sequence[Answer]]) -> Record:
    """Everything counts from the start of the first load."""
    zero_s = loads[0][0].started_s
    asked = [_level(seen, zero_s, seen.body["spec"]["replicas"]) for seen in deployment.seen]
    serving = [_level(seen, zero_s, seen.body.get("status", {}).get("readyReplicas", 0)) for seen in status.seen]
    return Record(
        requests=arrivals((load.started_s - zero_s, answers) for load, answers in loads),
        pods=moments(asked, serving),
        token_s=token_s,
        end_s=time.monotonic() - zero_s,
    )


def _level(seen: Seen, zero_s: float, pods: int) -> Level:
    return Level(seen.at_s - zero_s, pods)


def measure(kubectl: Kubectl, scaler: Scaler, count: int, progress: Progress) -> Measured:
    """`count` rounds of one service in a namespace of its own, which is gone afterwards."""
    service = Service(kubectl.within(NAMESPACE), NAME)
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=180)
    kubectl.run("create", "namespace", NAMESPACE)
    try:
        _begin(service, scaler)
        url, rounds, records = service.cluster_url(), list[Round](), list[Record]()
        for number in range(1, count + 1):
            with progress.step(f"{scaler}: round {number} of {count}"):
                done, record = one_round(service, url)
            rounds.append(done)
            records.append(record)
            progress.line(f"  {done}")
        return Measured(rounds, records, service.object())
    finally:
        kubectl.run("delete", "namespace", NAMESPACE, "--wait=false")


def _begin(service: Service, scaler: Scaler) -> None:
    service.kubectl.apply(manifests.text(subjects.service(scaler)))
    service.wait_until_ready(1, 120)
    if scaler is Scaler.HPA:
        service.kubectl.apply(manifests.text(subjects.autoscaler()))
        wait_for("the HorizontalPodAutoscaler reads its metric", lambda: _decides(service.kubectl), 120)


def _decides(kubectl: Kubectl) -> bool:
    return (condition(kubectl.get("hpa", NAME) or {}, "ScalingActive") or {}).get("status") == "True"
