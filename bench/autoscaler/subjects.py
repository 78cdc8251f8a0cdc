"""What is scaled, and what scales it: one service under our own autoscaler, or under Kubernetes's. Pure."""

from enum import StrEnum
from typing import Any

from e2e import manifests
from pagefleet_api import labels
from pagefleet_api.custom_metrics import CustomMetric

NAMESPACE, NAME = "bench-autoscaler", "stepped"
IN_FLIGHT_PER_POD = 8
BASE_CLIENTS, STEP_CLIENTS, STEP_PODS = 6, 38, 6
"""One pod's worth of requests in flight, and what comes on top: ceil((6 + 38) / 8) = 6 pods."""
LEAST_PODS, MOST_PODS = 1, 10
_RATE = {"policies": [{"type": "Pods", "value": MOST_PODS, "periodSeconds": 15}]}
BEHAVIOR = {"scaleUp": _RATE, "scaleDown": {"stabilizationWindowSeconds": 10, **_RATE}}
"""As fast as it may, both ways."""


class Scaler(StrEnum):
    """Who decides the number."""

    BUILTIN = "builtin"
    HPA = "hpa"


def service(scaler: Scaler) -> dict[str, Any]:
    """The service: in flight alone decides, here or by the autoscaler of `autoscaler`."""
    builtin = {
        "minReplicas": LEAST_PODS,
        "maxReplicas": MOST_PODS,
        "metrics": [{"type": "InFlightRequests", "target": {"averageValue": str(IN_FLIGHT_PER_POD)}}],
        "behavior": BEHAVIOR,
    }
    scaling = builtin if scaler is Scaler.BUILTIN else {"mode": "External"}
    made = manifests.service(NAME, cpu="20m", autoscaling=scaling, drain={"timeoutSeconds": 60})
    made["spec"]["engine"] = {"device": "paced", "maxNumSeqs": IN_FLIGHT_PER_POD, "maxModelLen": 2048}
    return made


def autoscaler() -> dict[str, Any]:
    """The HorizontalPodAutoscaler that is asked for the same as `service(Scaler.BUILTIN)`, as our page on it advises:
    by the service's sum, in which draining pods do not count.
    """
    referred = {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": NAME}
    metric = {
        "describedObject": referred,
        "metric": {"name": CustomMetric.IN_FLIGHT},
        "target": {"type": "AverageValue", "averageValue": str(IN_FLIGHT_PER_POD)},
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": NAME},
        "spec": {
            "scaleTargetRef": referred,
            "minReplicas": LEAST_PODS,
            "maxReplicas": MOST_PODS,
            "metrics": [{"type": "Object", "object": metric}],
            "behavior": BEHAVIOR,
        },
    }
