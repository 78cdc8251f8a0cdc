"""Fields of autoscaling that do not go together."""

from typing import Any

from tests.pagefleet_api.together.case import Case

_NIGHT = {"name": "night", "start": "22:00", "end": "06:00"}
_LESS = "lower its minReplicas and maxReplicas, or raise that"


def _scaling(words: str, field: str, place: str = "", **scaling: Any) -> Case:
    return Case({"autoscaling": scaling}, f"spec.autoscaling{place}", field, words)


def _metric(words: str, field: str, kind: str, **target: Any) -> Case:
    return _scaling(words, field, ".metrics[0]", maxReplicas=3, metrics=[{"type": kind, "target": target}])


SCALING = (
    _scaling(
        "autoscaling.mode External: whoever writes spec.replicas through /scale (a HorizontalPodAutoscaler, KEDA) "
        "decides; give bounds, metrics and behavior there and leave every other field of autoscaling out, or choose "
        "mode Builtin",
        "mode",
        mode="External",
        behavior={},
    ),
    _scaling(
        "autoscaling.maxReplicas is required unless autoscaling.mode is External; give the most replicas", "maxReplicas"
    ),
    _scaling(
        "minReplicas 4 must not be above maxReplicas 3; lower minReplicas or raise maxReplicas",
        "minReplicas",
        minReplicas=4,
        maxReplicas=3,
    ),
    _scaling(
        "autoscaling.minReplicas 0 is not available in this version; use 1 or more",
        "minReplicas",
        minReplicas=0,
        maxReplicas=3,
    ),
    *(
        _scaling(
            "autoscaling.schedules: night asks for 4 replicas, more than autoscaling.maxReplicas 3; " + _LESS,
            "schedules",
            maxReplicas=3,
            schedules=[{**_NIGHT, "name": "day", "maxReplicas": 3}, {**_NIGHT, **bounds}],
        )
        for bounds in ({"minReplicas": 4}, {"minReplicas": 1, "maxReplicas": 4}, {"minReplicas": 4, "maxReplicas": 5})
    ),
    _scaling(
        "autoscaling.schedules: night changes nothing; give its minReplicas, maxReplicas or both",
        "minReplicas",
        ".schedules[0]",
        maxReplicas=3,
        schedules=[_NIGHT],
    ),
    _scaling(
        "minReplicas 3 must not be above maxReplicas 2; lower minReplicas or raise maxReplicas",
        "minReplicas",
        ".schedules[0]",
        maxReplicas=9,
        schedules=[{**_NIGHT, "minReplicas": 3, "maxReplicas": 2}],
    ),
    *(
        _metric(
            f"autoscaling.metrics: {kind} takes target.{field} ({unit}) alone; give that, and leave every other one of "
            "target out",
            "target",
            kind,
            **target,
        )
        for kind, field, unit, target in (
            ("WaitingRequests", "averageValue", "requests a pod", {"averageUtilization": 3}),
            ("InFlightRequests", "averageValue", "requests a pod", {}),
            ("KVCacheUsage", "averageUtilization", "percent", {"averageValue": "3"}),
            ("KVCacheDemand", "averageUtilization", "percent", {"averageUtilization": 3, "p95": "1s"}),
            ("TimeToFirstToken", "p95", "a duration such as 500ms", {"averageValue": "3"}),
        )
    ),
    _metric(
        "autoscaling.metrics: KVCacheUsage never passes 100 percent, so target.averageUtilization 101 never asks for "
        "pods; use KVCacheDemand, which counts queued prompts too",
        "target.averageUtilization",
        "KVCacheUsage",
        averageUtilization=101,
    ),
)
