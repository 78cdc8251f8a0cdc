"""How fast the autoscaler answers a step of load, on a real cluster: `python -m bench.autoscaler --json OUT`.

A service of paced engines (real API, scheduler and KV books; steps take a GPU's time and compute nothing) holds one
pod's worth of requests; then six pods' worth come at once, stay, and go. Of each round: seconds from the step to the
number of replicas that answers it, how far that was exceeded, how long answers took longer than they should, and
whether any answer was cut on the way back down to one pod.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from e2e import manifests, release
from e2e.answers import Answer
from e2e.exchange import Target
from e2e.kubectl import Kubectl, Watch
from e2e.load import Load, LoadPlan, numbered
from e2e.progress import Progress
from e2e.service import Service, is_ready
from e2e.sites import BoxSite

NAMESPACE, NAME = "bench-autoscaler", "stepped"
IN_FLIGHT_PER_POD = 8
BASE_CLIENTS, STEP_CLIENTS, STEP_PODS = 6, 38, 6
"""One pod's worth of requests in flight, and what comes on top: ceil((6 + 38) / 8) = 6 pods."""
MOST_PODS = 10
TOKENS = 400
SLO_TIMES = 2.0
"""An answer may take so many times what the median one took before the step."""
WINDOW_S = 5.0
HOLD_S, CALM_S = 12.0, 6.0


class Round(NamedTuple):
    """What one step did."""

    up_s: float
    most_replicas: int
    slo_lost_s: float
    down_s: float
    scale_downs: int
    requests: int
    cut: int


def autoscaled() -> dict[str, Any]:
    """The service: in flight alone decides, as fast as it may."""
    scaling = {
        "minReplicas": 1,
        "maxReplicas": MOST_PODS,
        "metrics": [{"type": "InFlightRequests", "target": {"averageValue": str(IN_FLIGHT_PER_POD)}}],
        "behavior": {
            "scaleUp": {"policies": [{"type": "Pods", "value": MOST_PODS, "periodSeconds": 15}]},
            "scaleDown": {
                "stabilizationWindowSeconds": 10,
                "policies": [{"type": "Pods", "value": MOST_PODS, "periodSeconds": 15}],
            },
        },
    }
    service = manifests.service(NAME, cpu="20m", autoscaling=scaling, drain={"timeoutSeconds": 60})
    service["spec"]["engine"] = {"device": "paced", "maxNumSeqs": IN_FLIGHT_PER_POD, "maxModelLen": 2048}
    return service


def slo_lost_s(answers: Sequence[Answer], slo_s: float) -> float:
    """Seconds of windows in which one of twenty answers that were asked for took longer than `slo_s`."""
    windows: dict[int, list[float]] = {}
    for answer in answers:
        windows.setdefault(int(answer.started_s // WINDOW_S), []).append(answer.ended_s - answer.started_s)
    slow = sum(quantile(durations, 0.95) > slo_s for durations in windows.values())
    return slow * WINDOW_S


def quantile(values: Iterable[float], share: float) -> float:
    """The value that `share` of all do not exceed; there must be one."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@contextmanager
def _load(service: Service, url: str, clients: int) -> Iterator[Load]:
    target = Target(url=lambda: url, model=service.name, stream=False)
    with Load.start(LoadPlan(target=target, ask=numbered(TOKENS), clients=clients)) as load:
        yield load


def one_round(service: Service, url: str) -> Round:
    """Calm, step, hold, and back to one pod."""
    with service.watch_deployment() as deployment, service.watch() as status, _load(service, url, BASE_CLIENTS) as base:
        time.sleep(CALM_S)
        usual_s = statistics.median(answer.ended_s - answer.started_s for answer in base.answers)
        with _load(service, url, STEP_CLIENTS) as step:
            stepped_s = time.monotonic()
            up = deployment.until(lambda body: body["spec"]["replicas"] >= STEP_PODS, 120, stepped_s)
            status.until(lambda body: is_ready(body, STEP_PODS), 120, stepped_s)
            time.sleep(HOLD_S)
            answers = step.wait(60)
        ended_s = time.monotonic()
        down = status.until(lambda body: is_ready(body, 1), 180, ended_s)
        answers = [*answers, *base.wait(60)]
        most = _most(deployment, stepped_s)
    return Round(
        up_s=round(up.at_s - stepped_s, 2),
        most_replicas=most,
        slo_lost_s=slo_lost_s(step.answers, SLO_TIMES * usual_s),
        down_s=round(down.at_s - ended_s, 2),
        scale_downs=most - 1,
        requests=len(answers),
        cut=sum(answer.fault is not None for answer in answers),
    )


def _most(deployment: Watch, since_s: float) -> int:
    return max(int(seen.body["spec"]["replicas"]) for seen in deployment.seen if seen.at_s >= since_s)


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """One row for all rounds."""
    return {
        "work": "step-1-to-6",
        "scaler": "builtin",
        "rounds": len(rounds),
        "step_to_replicas_s": {
            "each": [each.up_s for each in rounds],
            "p50": quantile((each.up_s for each in rounds), 0.5),
            "p95": quantile((each.up_s for each in rounds), 0.95),
        },
        "overshoot": max(each.most_replicas for each in rounds) - STEP_PODS,
        "slo_minutes_lost": round(sum(each.slo_lost_s for each in rounds) / 60, 2),
        "back_to_one_s": [each.down_s for each in rounds],
        "scale_downs": sum(each.scale_downs for each in rounds),
        "requests": sum(each.requests for each in rounds),
        "cut": sum(each.cut for each in rounds),
    }


def measure(kubectl: Kubectl, count: int, progress: Progress) -> list[Round]:
    """`count` rounds of one service in a namespace of its own, which is gone afterwards."""
    service = Service(kubectl.within(NAMESPACE), NAME)
    kubectl.run("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=180)
    kubectl.run("create", "namespace", NAMESPACE)
    try:
        service.kubectl.apply(manifests.text(autoscaled()))
        service.wait_until_ready(1, 120)
        url, rounds = service.cluster_url(), []
        for number in range(1, count + 1):
            with progress.step(f"round {number} of {count}"):
                rounds.append(one_round(service, url))
            progress.line(f"  {rounds[-1]}")
        return rounds
    finally:
        kubectl.run("delete", "namespace", NAMESPACE, "--wait=false")


def main() -> int:
    """The exit status is 1 when an answer was cut, or the number was exceeded."""
    parser = argparse.ArgumentParser(prog="bench.autoscaler", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="steps to measure (default 5, a minute each)")
    parser.add_argument("--json", type=Path, required=True, help="append the row to this file")
    given = parser.parse_args()
    progress, site = Progress(), BoxSite.here()
    ran_before = site.box.alive()
    names = site.bring_up(progress)
    try:
        with progress.step("Helm installs the chart"):
            release.install(site, names)
        row = summary(measure(site.kubectl, given.rounds, progress))
    finally:
        if not ran_before:
            site.box.down()
    _write(given.json, row)
    return 1 if row["cut"] or row["overshoot"] > 0 else 0


def _write(path: Path, row: Mapping[str, Any]) -> None:
    text = json.dumps({**row, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as rows:
        rows.write(text + "\n")
    print(text)


if __name__ == "__main__":
    raise SystemExit(main())
