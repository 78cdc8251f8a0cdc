"""What a service tells autoscalers of others about its load (pure).

Only pods that take new requests count, as `status.replicas` counts them, and a pod without a fresh, plausible
sample is missing, never zero.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from pagefleet_api.custom_metrics import CustomMetric
from pagefleet_api.service import InferenceService
from pagefleet_operator.autoscaling import Fleet, PodLoad, Policy
from pagefleet_operator.autoscaling.readings import read
from pagefleet_operator.facts.observed import Now, Observed

Values = Mapping[CustomMetric, float]
"""Requests, or shares of a pod's KV cache."""


class Reading(NamedTuple):
    """What was read, and when the oldest sample in it was taken."""

    values: Values
    when: datetime


def of_pods(service: InferenceService, observed: Observed, now: Now) -> dict[str, Reading]:
    """By pod name; a pod that gave no sample is left out."""
    policy = Policy.believing(service)
    told = {pod.name: (_values(pod, policy), pod.age_s) for pod in Fleet.of(observed, now).pods}
    return {
        name: Reading(values, now.wall - timedelta(seconds=age_s))
        for name, (values, age_s) in told.items()
        if values and age_s is not None
    }


def of_service(service: InferenceService, observed: Observed, now: Now) -> Reading:
    """Sums over the pods. A ready pod that is silent counts as the mean of the ready ones that are not, so that it
    moves no average; a metric that fewer than half of the ready pods tell is left out.
    """
    told, pods = of_pods(service, observed, now), Fleet.of(observed, now).pods
    sums = {metric: _sum(metric, told, pods) for metric in CustomMetric}
    known = {metric: total for metric, total in sums.items() if total is not None}
    return Reading(known, min((reading.when for reading in told.values()), default=now.wall))


def words(service: InferenceService, observed: Observed, now: Now) -> str:
    """The mean of each metric a pod, as `status.targets` has it."""
    told = of_pods(service, observed, now)
    queue, in_flight = _mean(CustomMetric.WAITING, told), _mean(CustomMetric.IN_FLIGHT, told)
    parts, usage = (f"queue {_number(queue)}", f"in flight {_number(in_flight)}"), _mean(CustomMetric.KV_USAGE, told)
    return ", ".join(parts if usage is None else (*parts, f"kv {usage * 100:.0f} %"))


def _values(pod: PodLoad, policy: Policy) -> Values:
    readings = read(Fleet(None, (pod,)), policy)
    demands = {
        CustomMetric.WAITING: readings.waiting,
        CustomMetric.IN_FLIGHT: readings.in_flight,
        CustomMetric.KV_USAGE: readings.kv,
        CustomMetric.KV_DEMAND: readings.kv_demand,
    }
    return {metric: demand.known for metric, demand in demands.items() if demand.pods}


def _sum(metric: CustomMetric, told: Mapping[str, Reading], pods: tuple[PodLoad, ...]) -> float | None:
    known = {name: reading.values[metric] for name, reading in told.items() if metric in reading.values}
    ready = [pod.name for pod in pods if pod.ready]
    heard = [known[name] for name in ready if name in known]
    silent = len(ready) - len(heard)
    if not heard or silent > len(heard):
        return None
    return sum(known.values()) + silent * sum(heard) / len(heard)


def _mean(metric: CustomMetric, told: Mapping[str, Reading]) -> float | None:
    known = [reading.values[metric] for reading in told.values() if metric in reading.values]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return "?" if value is None else f"{round(value, 1):g}"
