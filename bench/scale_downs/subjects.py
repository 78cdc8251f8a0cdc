"""Services that swing between one pod and many, and the load that makes them. Pure."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from e2e import manifests
from e2e.answers import Ask
from pagefleet_api import labels

NAMESPACE = "bench-scale-downs"
_MOST_AT_ONCE = 32
_DRAIN_S = 600
"""On a busy machine, answers may take many times as long."""


class Engines(StrEnum):
    """What computes the tokens."""

    PACED = "paced"
    """Real API, scheduler and KV books; a step takes its time and computes nothing."""
    REAL = "real"
    """SmolLM2 on the CPU."""


class Swing(NamedTuple):
    """How one service is loaded, and up to where.

    `base` streams are always open, and as many more as fill `pods` until all of these are ready. `held` streams then
    begin, `held_tokens` long, and the rest ends: the pods that are too many drain while those run.
    """

    pods: int
    in_flight_per_pod: int
    base: int
    base_tokens: int
    held: int
    held_tokens: int
    step_s: float | None = None
    """What a step of paced engines takes."""

    @property
    def pressing(self) -> int:
        """Streams beside `base` that ask for `pods` pods, also while some of them are between two requests."""
        return self.pods * self.in_flight_per_pod


SWINGS: Mapping[Engines, Swing] = {
    Engines.PACED: Swing(
        pods=8, in_flight_per_pod=8, base=4, base_tokens=4, held=18, held_tokens=14, step_s=1.5
    ),
    Engines.REAL: Swing(pods=6, in_flight_per_pod=4, base=2, base_tokens=16, held=10, held_tokens=160),
}  # fmt: skip


def service(engines: Engines, name: str) -> dict[str, Any]:
    """What is applied: requests in flight alone decide, as fast as may be both ways."""
    swing = SWINGS[engines]
    rate = {"policies": [{"type": "Pods", "value": _MOST_AT_ONCE, "periodSeconds": 5}]}
    scaling = {
        "minReplicas": 1,
        "maxReplicas": swing.pods,
        "metrics": [{"type": "InFlightRequests", "target": {"averageValue": str(swing.in_flight_per_pod)}}],
        "behavior": {"scaleUp": rate, "scaleDown": {"stabilizationWindowSeconds": 5, **rate}},
    }
    spec: dict[str, Any] = {"autoscaling": scaling, "drain": {"timeoutSeconds": _DRAIN_S}}
    if swing.step_s is None:
        return manifests.service(name, cpu="20m", **spec)
    return manifests.paced(name, swing.step_s, engine={"maxModelLen": 2048}, cpu="20m", **spec)


def resource(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The InferenceService in what is applied."""
    found: list[Mapping[str, Any]] = [each for each in manifest.get("items", [manifest]) if each["kind"] == labels.KIND]
    return found[0]


def ask(tokens: int, salt: str) -> Callable[[int], Ask]:
    """Requests of `tokens` to half as many more, so that they do not all end at once; no two are alike."""
    return lambda number: Ask(f"{salt}, {number}: a story, please.", tokens + number % (tokens // 2 + 1))
