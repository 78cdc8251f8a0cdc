"""Fewer pods that queued under this load before would queue again: the way down stops above them.

Seats alone do not tell how few pods do: requests spread unevenly, so a queue can grow while seats are free
elsewhere. Without this memory a constant load whose queue passes a small target now and then would move the
number down and up for ever.
"""

from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling.policy import TOLERANCE, Policy
from pagefleet_operator.autoscaling.proposals import Proposal
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Fleet, Memory, Overrun
from pagefleet_operator.observed import Now

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
    return Overrun(min(memory.desired, fleet.ready), readings.in_flight.known, now.monotonic_s, policy)
