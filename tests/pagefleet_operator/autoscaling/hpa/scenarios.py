"""What a real HorizontalPodAutoscaler and our function are both shown: loads over time, slow and silent pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Points = Sequence[tuple[float, float]]
"""(seconds, demand over all pods); between two of them the demand moves in a straight line."""

TIMELINES = Path(__file__).parents[1] / "hpa_timelines.json"
IN_FLIGHT, KV = "InFlightRequests", "KVCacheUsage"
DURATION_S = 56.0

_FAST_DOWN = {"scaleDown": {"stabilizationWindowSeconds": 0}}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One service of the rehearsal. KV demand is in percent of one pod's cache."""

    name: str
    demand: Points
    metric: str = IN_FLIGHT
    target: int = 4
    """Requests in flight a pod, or percent of its cache."""
    behavior: Mapping[str, Any] = field(default_factory=lambda: _FAST_DOWN)
    least: int = 1
    most: int = 20
    begin: int = 1
    start_s: float = 0.0
    """A new pod is Pending for so long."""
    silent: Sequence[tuple[float, float, int]] = ()
    """(from, until, how many of the oldest pods give no reading)."""

    def at(self, now_s: float) -> float:
        """The demand over all pods."""
        before = max((point for point in self.demand if point[0] <= now_s), default=self.demand[0])
        after = min((point for point in self.demand if point[0] > now_s), default=before)
        if after[0] == before[0]:
            return before[1]
        return before[1] + (after[1] - before[1]) * (now_s - before[0]) / (after[0] - before[0])

    def silent_at(self, now_s: float) -> int:
        """How many pods give no reading."""
        return sum(count for since_s, until_s, count in self.silent if since_s <= now_s < until_s)

    def autoscaling(self) -> dict[str, Any]:
        """The same as `spec.autoscaling` of ours."""
        percent = self.metric == KV
        target = {"averageUtilization": self.target} if percent else {"averageValue": str(self.target)}
        return {
            "minReplicas": self.least,
            "maxReplicas": self.most,
            "metrics": [{"type": self.metric, "target": target}],
            "behavior": dict(self.behavior),
            "missingMetrics": {"minCoverage": "0"},
        }


def step(low: float, high: float, at_s: float = 8.0, until_s: float = 1000.0) -> Points:
    """Low, then high at once, then low again."""
    return ((0, low), (at_s, low), (at_s + 0.01, high), (until_s, high), (until_s + 0.01, low))


def saw(low: float, high: float, period_s: float) -> Points:
    """Rises in a straight line, falls at once, again and again."""
    return tuple(
        point
        for number in range(int(DURATION_S // period_s) + 1)
        for point in ((number * period_s, low), ((number + 1) * period_s - 0.01, high))
    )


def flap(low: float, high: float, period_s: float) -> Points:
    """Low and high in turns."""
    half_s = period_s / 2
    return tuple(
        point
        for number in range(int(DURATION_S // half_s) + 1)
        for point in (
            (number * half_s, (low, high)[number % 2]),
            ((number + 1) * half_s - 0.01, (low, high)[number % 2]),
        )
    )


def _down(window_s: int, *policies: dict[str, Any], **more: Any) -> dict[str, Any]:
    rules: dict[str, Any] = {"stabilizationWindowSeconds": window_s, **more}
    return {"scaleDown": {**rules, "policies": list(policies)} if policies else rules}


def _up(*policies: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**_FAST_DOWN, "scaleUp": {"policies": list(policies), **more} if policies else more}


def pods(value: int, period_s: int) -> dict[str, Any]:
    """A rate in pods."""
    return {"type": "Pods", "value": value, "periodSeconds": period_s}


def percent(value: int, period_s: int) -> dict[str, Any]:
    """A rate in percent."""
    return {"type": "Percent", "value": value, "periodSeconds": period_s}


_HELD = _up(stabilizationWindowSeconds=10)
RAMP: Points = ((0, 3), (8, 3), (40, 60), (56, 60))
HILL: Points = ((0, 3), (6, 3), (26, 50), (30, 50), (50, 3), (56, 3))
FALL: Points = ((0, 60), (10, 60), (10.01, 6), (56, 6))

SCENARIOS = (
    Scenario(name="step-small", demand=step(3, 11)),
    Scenario(name="step-large", demand=step(3, 70)),
    Scenario(name="step-and-back", demand=step(3, 30, until_s=30)),
    Scenario(name="step-above-the-maximum", demand=step(3, 300), most=7),
    Scenario(name="below-the-minimum", demand=step(20, 0), least=3, begin=5),
    Scenario(name="begins-below-the-minimum", demand=step(2, 20), least=3, begin=1),
    Scenario(name="begins-above-the-maximum", demand=step(20, 50), most=6, begin=9),
    Scenario(name="ramp", demand=RAMP),
    Scenario(name="ramp-kv", demand=((0, 40), (8, 40), (40, 600), (56, 600)), metric=KV, target=75),
    Scenario(name="hill", demand=HILL),
    Scenario(name="hill-window-down", demand=HILL, behavior=_down(8)),
    Scenario(name="spike", demand=step(6, 60, until_s=13), behavior=_down(12)),
    Scenario(name="spike-held-by-up-window", demand=step(6, 60, until_s=13), behavior=_HELD),
    Scenario(name="step-after-up-window", demand=step(6, 60), behavior=_HELD),
    Scenario(name="saw", demand=saw(4, 40, 14)),
    Scenario(name="saw-window-down", demand=saw(4, 40, 14), behavior=_down(16)),
    Scenario(name="saw-kv", demand=saw(50, 500, 18), metric=KV, target=60, behavior=_down(6)),
    Scenario(name="flapping", demand=flap(8, 24, 12)),
    Scenario(name="flapping-window-down", demand=flap(8, 24, 12), behavior=_down(20), begin=2),
    Scenario(name="flapping-both-windows", demand=flap(8, 24, 12), begin=2,
             behavior={"scaleUp": {"stabilizationWindowSeconds": 8}, "scaleDown": {"stabilizationWindowSeconds": 8}}),
    Scenario(name="flapping-within-the-tolerance", demand=flap(37, 43, 8), begin=10),
    Scenario(name="tolerance-of-nothing", demand=flap(37, 43, 8), begin=10,
             behavior={"scaleUp": {"tolerance": "0"}, **_down(0, tolerance="0")}),
    Scenario(name="tolerance-wide-down", demand=flap(27, 43, 8), begin=10, behavior=_down(0, tolerance="0.4")),
    Scenario(name="up-one-pod-a-period", demand=step(3, 40), behavior=_up(pods(1, 6))),
    Scenario(name="up-percent", demand=step(12, 80), begin=3, behavior=_up(percent(50, 8))),
    Scenario(name="up-min-of-two", demand=step(12, 80), begin=3,
             behavior=_up(pods(4, 10), percent(50, 10), selectPolicy="Min")),
    Scenario(name="up-max-of-two", demand=step(12, 80), begin=3, behavior=_up(pods(2, 10), percent(50, 5))),
    Scenario(name="up-disabled", demand=step(12, 80, until_s=24), begin=6, behavior=_up(selectPolicy="Disabled")),
    Scenario(name="down-one-pod-a-period", demand=FALL, begin=15, behavior=_down(0, pods(1, 6))),
    Scenario(name="down-percent", demand=FALL, begin=15, behavior=_down(0, percent(20, 6))),
    Scenario(name="down-min-of-two", demand=FALL, begin=15,
             behavior=_down(4, pods(3, 8), percent(20, 8), selectPolicy="Min")),
    Scenario(name="down-disabled", demand=FALL, begin=15, behavior=_down(0, selectPolicy="Disabled")),
    Scenario(name="up-and-down-share-the-period", demand=flap(8, 40, 14), begin=2,
             behavior={"scaleUp": {"policies": [pods(4, 12)]},
                       "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [pods(2, 12)]}}),
    Scenario(name="slow-starts", demand=step(3, 30), start_s=10),
    Scenario(name="slow-starts-ramp", demand=RAMP, start_s=8),
    Scenario(name="slow-starts-kv", demand=step(40, 400), metric=KV, target=70, start_s=12),
    Scenario(name="pods-that-never-start", demand=step(3, 14), start_s=1000),
    Scenario(name="unready-pods-and-load-falls", demand=step(3, 40, at_s=6, until_s=14), start_s=14),
    Scenario(name="missing-pods-busy", demand=step(30, 48, at_s=20), begin=8, silent=((10, 40, 2),)),
    Scenario(name="missing-pods-idle", demand=step(30, 8, at_s=14), begin=8, silent=((10, 34, 3),)),
    Scenario(name="missing-all", demand=step(30, 8, at_s=14), begin=8, silent=((10, 34, 20),)),
    Scenario(name="missing-pods-kv", demand=step(300, 90, at_s=14), metric=KV, target=50, begin=6,
             silent=((8, 30, 2),)),
)  # fmt: skip
