"""Fewer pods that queued under this load before would queue again: the way down stops above them.

Seats alone do not tell how few pods do: requests spread unevenly, so a queue can grow while seats are free
elsewhere; and fewer pods compute more slowly, so that what is in flight on many may be more than few can compute,
seats or not. Without this memory a constant load would move the number down and up for ever.

A queue soon after a way down is that way's doing: the load that it is proof of is the one before it, not the one that
has piled up since. As every such attempt makes requests wait, the next one goes only half as far.
"""

from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling.policy import TOLERANCE, Policy
from pagefleet_operator.autoscaling.proposals import Proposal
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Descent, Fleet, Memory, Overrun
from pagefleet_operator.observed import Now

DESCENT_S = 180.0
"""A queue within so long after the number went down counts as caused by that."""
PROOF_S = 3600.0
"""Requests change their nature: an older proof says nothing about today's."""


def floor(memory: Memory, policy: Policy, readings: Readings, now: Now) -> int:
    """The least number that a load like the present one did not outgrow; 0 where nothing is known."""
    proof = memory.overrun
    if proof is None or proof.policy != policy or now.monotonic_s - proof.when_s >= PROOF_S:
        return 0
    alike = readings.in_flight.known >= (1 - TOLERANCE) * proof.in_flight
    return proof.pods + 1 if alike else 0


def learn(
    memory: Memory,
    policy: Policy,
    fleet: Fleet,
    readings: Readings,
    proposals: tuple[Proposal, ...],
    desired: int,
    now: Now,
) -> Overrun | None:
    """The proof to keep: a new one when the queue of ready pods raised the number, else the one there is."""
    queued = any(
        proposal.type is MetricType.WAITING_REQUESTS
        and (proposal.replicas or 0) + policy.spare_replicas > memory.desired
        for proposal in proposals
    )
    if desired <= memory.desired or not queued:
        return memory.overrun
    failed, load, descent = min(memory.desired, fleet.ready), readings.in_flight.known, _recent(memory, now)
    if descent is None or descent.pods <= failed:
        return Overrun(failed, load, now.monotonic_s, policy)
    halfway = failed + (descent.pods - failed) // 2
    return Overrun(max(failed, halfway - 1), min(load, descent.in_flight), now.monotonic_s, policy)


def descend(memory: Memory, readings: Readings, desired: int, now: Now) -> Descent | None:
    """The way down to remember; one that follows another closely goes on with it."""
    if desired >= memory.desired:
        return memory.descent
    begun = _recent(memory, now)
    if begun is None:
        return Descent(memory.desired, readings.in_flight.known, now.monotonic_s)
    return begun._replace(when_s=now.monotonic_s)


def _recent(memory: Memory, now: Now) -> Descent | None:
    descent = memory.descent
    return descent if descent is not None and now.monotonic_s - descent.when_s < DESCENT_S else None
