"""What each metric asks for, and how few pods would hold the load."""

import math
from typing import NamedTuple

from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling.readings import Demand, Readings
from pagefleet_operator.autoscaling.values import Policy

TOLERANCE = 0.1
"""Share by which demand may differ from what the current pods should carry before anything moves.
HorizontalPodAutoscaler's default, `--horizontal-pod-autoscaler-tolerance`."""

FULL = 0.9
"""Share of seats or KV blocks that counts as full where no target is given for them."""


class Proposal(NamedTuple):
    """The answer of one metric of the policy."""

    type: MetricType
    demand: Demand
    target: float
    """A pod: requests, or a share of KV blocks 0..1."""
    replicas: int | None
    """None while no pod gives a reading."""


def propose(policy: Policy, readings: Readings, before: int) -> tuple[Proposal, ...]:
    """`ceil(demand / target)` for each metric in use, within the tolerance `before`."""
    rows = (
        (MetricType.WAITING_REQUESTS, readings.waiting, policy.waiting_target),
        (MetricType.KV_CACHE_USAGE, readings.kv, policy.kv_target),
        (MetricType.IN_FLIGHT_REQUESTS, readings.in_flight, policy.in_flight_target),
    )
    return tuple(
        Proposal(kind, demand, target, _pods(demand.at_least(), target, before) if demand.pods else None)
        for kind, demand, target in rows
        if target is not None
    )


def fewest(policy: Policy, readings: Readings, before: int) -> int:
    """The smallest number of pods, at least one, that holds what is in flight and in KV now.

    A silent pod counts as at target. An empty queue says nothing about fewer pods, so the queue has no say here.
    """
    seats, share = seats_per_pod(policy), kv_share_per_pod(policy)
    return max(
        1,
        _pods(readings.in_flight.at_most(seats), seats, before),
        _pods(readings.kv.at_most(share), share, before),
    )


def seats_per_pod(policy: Policy) -> float:
    """Requests in flight that a pod should hold: the InFlightRequests target, or most of its seats."""
    return policy.in_flight_target or max(FULL * policy.max_num_seqs, 1.0)


def kv_share_per_pod(policy: Policy) -> float:
    """Share of its KV blocks that a pod should use, 0..1."""
    return policy.kv_target or FULL


def _pods(demand: float, target: float, before: int) -> int:
    planned = target * before
    if abs(demand - planned) <= TOLERANCE * planned:
        return before
    return math.ceil(demand / target - 1e-9)
