"""What a service offers to autoscalers of others: names of `custom.metrics.k8s.io`, and of KEDA's triggers."""

from enum import StrEnum
from typing import NamedTuple

API_GROUP = "custom.metrics.k8s.io"
VERSION = "v1beta2"
API_SERVICE = f"{VERSION}.{API_GROUP}"
"""Name of the APIService by which the API server finds who serves these metrics."""


class CustomMetric(StrEnum):
    """A metric of a pod; of an InferenceService it is the sum over the pods that take new requests."""

    WAITING = "pagefleet_waiting_requests"
    IN_FLIGHT = "pagefleet_in_flight_requests"
    KV_USAGE = "pagefleet_kv_cache_usage"
    KV_DEMAND = "pagefleet_kv_cache_demand"


class Meaning(NamedTuple):
    """A metric in words."""

    unit: str
    words: str


MEANINGS = {
    CustomMetric.WAITING: Meaning("requests", "accepted and without a seat"),
    CustomMetric.IN_FLIGHT: Meaning("requests", "accepted and not finished"),
    CustomMetric.KV_USAGE: Meaning("share of a pod's KV cache", "referenced by requests, 0 to 1 a pod"),
    CustomMetric.KV_DEMAND: Meaning("share of a pod's KV cache", "the same with the prompts that wait; may pass 1"),
}
