"""What each metric asks for, and how few pods would hold the load."""

import math
from typing import NamedTuple

from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling.latency import Latency
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.readings import Demand, Readings

FULL = 0.9
"""Share of seats or KV blocks that counts as full where no target is given for them."""
LATENCY_STEP = 2
"""Multiple of the ready pods that a latency may ask for at once."""


class Proposal(NamedTuple):
    """The answer of one metric of the policy."""

    type: MetricType
    demand: Demand
    target: float
    """A pod: requests, or a share of KV blocks 0..1; of all pods: seconds."""
    replicas: int | None
    """None while no pod gives a reading."""


class Holding(NamedTuple):
    """One thing that pods hold, and how much of it a pod should."""

    type: MetricType
    demand: Demand
    share: float
    """A pod: requests in flight, or KV blocks as a share of a pod's."""


def propose(policy: Policy, readings: Readings, before: int) -> tuple[Proposal, ...]:
    """`ceil(demand / target)` for each metric in use, within the tolerance `before`."""
    rows = (
        (MetricType.WAITING_REQUESTS, readings.waiting, policy.waiting_target),
        (MetricType.KV_CACHE_USAGE, readings.kv, policy.kv_target),
        (MetricType.KV_CACHE_DEMAND, readings.kv_demand, policy.kv_demand_target),
        (MetricType.IN_FLIGHT_REQUESTS, readings.in_flight, policy.in_flight_target),
    )
    return tuple(
        Proposal(kind, demand, target, _pods(policy, demand.at_least(), target, before) if demand.pods else None)
        for kind, demand, target in rows
        if target is not None
    )


def propose_latency(policy: Policy, latency: Latency | None, ready: int, before: int) -> tuple[Proposal, ...]:
    """As many pods more as the time is too long, at most twice those that are ready: latency is not proportional.

    Its demand is the 95th percentile itself, in seconds.
    """
    target_s = policy.ttft_target_s
    if target_s is None:
        return ()
    if latency is None:
        return (Proposal(MetricType.TIME_TO_FIRST_TOKEN, Demand(0, 0, ready), target_s, None),)
    ratio = latency.p95_s / target_s
    within = 1 - policy.down.tolerance <= ratio <= 1 + policy.up.tolerance
    asked = before if within else min(_whole(ready * ratio), LATENCY_STEP * ready)
    demand = Demand(latency.p95_s, latency.pods, max(ready - latency.pods, 0))
    return (Proposal(MetricType.TIME_TO_FIRST_TOKEN, demand, target_s, asked),)


def holdings(policy: Policy, readings: Readings) -> tuple[Holding, ...]:
    """What says how few pods do. An empty queue says nothing about fewer pods, so the queue is not among it."""
    held = (
        Holding(MetricType.IN_FLIGHT_REQUESTS, readings.in_flight, seats_per_pod(policy)),
        Holding(MetricType.KV_CACHE_USAGE, readings.kv, kv_share_per_pod(policy)),
    )
    if policy.kv_demand_target is None:
        return held
    return (*held, Holding(MetricType.KV_CACHE_DEMAND, readings.kv_demand, policy.kv_demand_target))


def fewest(policy: Policy, readings: Readings, before: int) -> int:
    """The smallest number of pods, at least one, that holds what is in flight and in KV now.

    A silent pod counts as at target. As with a HorizontalPodAutoscaler, the pods that may hold load must be
    below their target for that, tolerance included: pods that are still on their way lower nothing.
    """
    return max(1, *(_holding(policy, holding, before) for holding in holdings(policy, readings)))


def seats_per_pod(policy: Policy) -> float:
    """Requests in flight that a pod should hold: the InFlightRequests target, or most of its seats."""
    return policy.in_flight_target or max(FULL * policy.max_num_seqs, 1.0)


def kv_share_per_pod(policy: Policy) -> float:
    """Share of its KV blocks that a pod should use, 0..1."""
    return policy.kv_target or FULL


def _holding(policy: Policy, holding: Holding, before: int) -> int:
    demand, share = holding.demand.at_most(holding.share), holding.share
    carrying = min(before, holding.demand.pods + holding.demand.missing)
    if demand >= (1 - policy.down.tolerance) * share * carrying > 0:
        return max(before, _whole(demand / share))
    return _whole(demand / share)


def _pods(policy: Policy, demand: float, target: float, before: int) -> int:
    ratio = demand / (target * before) if before else math.inf
    if 1 - policy.down.tolerance <= ratio <= 1 + policy.up.tolerance:
        return before
    return _whole(demand / target)


def _whole(pods: float) -> int:
    return math.ceil(pods - 1e-9)
