"""Services that nothing runs: pods that exist on paper, with readings that follow a scenario."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.pagefleet_operator.apiserver.api import Api, Json
from tests.pagefleet_operator.autoscaling.hpa.scenarios import DURATION_S, KV, Scenario

NAMESPACE = "rehearsal"
PENDING, SILENT = "pending", "silent"
Seen = int | str
"""What the autoscaler could know of a pod: its reading in thousandths, `pending` or `silent`."""


@dataclass
class Stage:
    """One scenario as it goes on. Every call is made under the lock."""

    scenario: Scenario
    replicas: int = 0
    pods: dict[str, float] = field(default_factory=dict)
    """Name → monotonic seconds of the start."""
    running: set[str] = field(default_factory=set)
    made: int = 0
    frames: list[tuple[float, int, list[Seen]]] = field(default_factory=list)
    """(seconds, replicas that were asked for, what was known of each pod), one for each question."""

    def look(self, now_s: float) -> dict[str, Seen]:
        """What an autoscaler that asks now sees of each pod."""
        scenario, running = self.scenario, [name for name in self.pods if name in self.running]
        silent = set(running[: scenario.silent_at(now_s)])
        # A pod's reading stays what it would be if all spoke: silence takes no load away.
        demand = scenario.at(now_s)
        if scenario.metric == KV:
            shares = [min(share, 1000) for share in _shares(demand, len(running), 10)]  # full is full
        else:
            shares = _shares(demand, len(running), 1000)
        values = dict(zip(running, shares, strict=True))
        return {
            name: PENDING if name not in self.running else SILENT if name in silent else values[name]
            for name in self.pods
        }


def _shares(demand: float, pods: int, thousandths: int) -> list[int]:
    """Whole requests, or whole percents, spread as evenly as they go."""
    whole = round(demand)
    return [(whole // pods + (number < whole % pods)) * thousandths for number in range(pods)]


class Rehearsal:
    """All stages of one round against one API server."""

    def __init__(self, api: Api, scenarios: tuple[Scenario, ...]) -> None:
        self._api, self._lock = api, threading.Lock()
        self.stages = {scenario.name: Stage(scenario) for scenario in scenarios}
        self._began_s = time.monotonic()

    def readings(self, name: str) -> dict[str, int]:
        """What the metrics API says of a scenario; noted as a frame."""
        with self._lock:
            now_s, stage = time.monotonic() - self._began_s, self.stages.get(name)
            if stage is None:
                return {}  # an autoscaler of the round before is not gone yet
            seen = stage.look(now_s)
            if now_s <= DURATION_S:
                stage.frames.append((round(now_s, 2), stage.replicas, list(seen.values())))
        return {name: value for name, value in seen.items() if isinstance(value, int)}

    def prepare(self) -> None:
        """Objects with a scale, and the pods that they begin with, running."""
        for name, stage in self.stages.items():
            spec = {"model": {"uri": "pkg://none"}, "replicas": stage.scenario.begin}
            self._api.create(
                "inferenceservices",
                {
                    "kind": "InferenceService",
                    "apiVersion": "pagefleet.io/v1alpha1",
                    "metadata": {"name": name, "namespace": NAMESPACE},
                    "spec": spec,
                },
            )
            status = {"selector": f"app={name}", "replicas": stage.scenario.begin}
            self._api.merge("inferenceservices", NAMESPACE, name, {"status": status}, "status")
        self.follow()
        for stage in self.stages.values():
            for pod in list(stage.pods):
                self._run(stage, pod)

    def begin(self) -> None:
        """Time starts now, for every autoscaler."""
        self._began_s = time.monotonic()
        for stage in self.stages.values():
            stage.pods = dict.fromkeys(stage.pods, 0.0)
            self._api.call(
                "POST",
                f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers",
                autoscaler(stage.scenario),
            )

    def follow(self) -> None:
        """Make, start and delete pods as the numbers ask."""
        asked = {
            body["metadata"]["name"]: body["spec"]["replicas"]
            for body in self._api.list("inferenceservices", NAMESPACE)
        }
        now_s = time.monotonic() - self._began_s
        for name, stage in self.stages.items():
            with self._lock:
                stage.replicas = asked[name]
            while len(stage.pods) > stage.replicas:
                self._delete(stage)
            while len(stage.pods) < stage.replicas:
                self._make(stage, now_s)
            for pod, started_s in list(stage.pods.items()):
                if pod not in stage.running and now_s - started_s >= stage.scenario.start_s > 0:
                    self._run(stage, pod)

    def _make(self, stage: Stage, now_s: float) -> None:
        stage.made += 1
        pod = f"{stage.scenario.name}-{stage.made}"
        meta = {"name": pod, "namespace": NAMESPACE, "labels": {"app": stage.scenario.name}}
        container = {"name": "c", "image": "none"}
        spec = {"containers": [container], "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
        self._api.create("pods", {"metadata": meta, "spec": spec})
        with self._lock:
            stage.pods[pod] = now_s
        if stage.scenario.start_s == 0:
            self._run(stage, pod)

    def _run(self, stage: Stage, pod: str) -> None:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
        status = {"phase": "Running", "startTime": since, "conditions": [ready]}
        self._api.merge("pods", NAMESPACE, pod, {"status": status}, "status")
        with self._lock:
            stage.running.add(pod)

    def _delete(self, stage: Stage) -> None:
        pod = list(stage.pods)[-1]
        self._api.delete("pods", NAMESPACE, pod)
        with self._lock:
            del stage.pods[pod]
            stage.running.discard(pod)


def autoscaler(scenario: Scenario) -> Json:
    """The HorizontalPodAutoscaler of a scenario."""
    target = f"{scenario.target * 10}m" if scenario.metric == KV else str(scenario.target)
    metric: dict[str, Any] = {"metric": {"name": "load"}, "target": {"type": "AverageValue", "averageValue": target}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": scenario.name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": "pagefleet.io/v1alpha1",
                "kind": "InferenceService",
                "name": scenario.name,
            },
            "minReplicas": scenario.least,
            "maxReplicas": scenario.most,
            "behavior": dict(scenario.behavior),
            "metrics": [{"type": "Pods", "pods": metric}],
        },
    }
