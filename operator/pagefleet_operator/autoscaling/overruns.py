"""Fewer pods that this load outgrew before would be outgrown again: the way down stops above them.

Seats alone do not tell how few pods do: requests spread unevenly, so a queue can grow while seats are free
elsewhere; and fewer pods compute more slowly, so that what is in flight and in KV on many may be more than few can
compute or keep. Without this memory a constant load would move the number down and up for ever.

A queue soon after a way down is that way's doing: the load that it is proof of is the one before it, not the one that
has piled up since. As every such attempt makes requests wait, the next one goes only half as far.

Other metrics may rise after a way down because there is more load. That is in doubt until the pods that were added are
ready: when the load is then again what it was before the number went up, it was the same load on too few.

A way down from nothing in flight shows nothing about a load: each one that follows is another.
"""

from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling.policy import TOLERANCE, Policy
from pagefleet_operator.autoscaling.proposals import Proposal
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Descent, Doubt, Fleet, Memory, Overrun
from pagefleet_operator.facts.observed import Now

DESCENT_S = 180.0
"""A queue within so long after the number went down counts as caused by that."""
SETTLING_S = 900.0
"""What has piled up on too few pods shows, and is computed, within so long: pods that held longer were enough, and a
load that stays longer is more load.
"""
PATIENT_S = 60.0
"""Who has the number follow the load within less time than this window asks for its swings."""
ALIKE = 0.75
"""Share of a load that is like it: what comes in at one rate is less in flight on more pods, which are quicker."""
BURST = 4.0
"""A load so many times that of a way down is another one, of which the way down proves nothing."""
PROOF_S = 3600.0
"""Requests change their nature: an older proof says nothing about today's."""


def floor(memory: Memory, policy: Policy, readings: Readings, now: Now) -> int:
    """The least number that a load like the present one did not outgrow; 0 where nothing is known."""
    proof = memory.overrun
    if proof is None or proof.policy != policy or now.monotonic_s - proof.when_s >= PROOF_S:
        return 0
    alike = readings.in_flight.known >= ALIKE * proof.in_flight > 0
    return proof.pods + 1 if alike else 0


def hold(memory: Memory, policy: Policy, readings: Readings, now: Now) -> str | None:
    """In words, why the number does not fall, and until when; None where that is not what holds it."""
    proof = memory.overrun
    if proof is None or floor(memory, policy, readings, now) < memory.desired:
        return None
    left_s = proof.when_s + PROOF_S - now.monotonic_s
    least = ALIKE * proof.in_flight
    return f"{proof.pods} were too few for this load: for {left_s:.0f} s, or until fewer than {least:.3g} are in flight"


def learn(
    memory: Memory,
    policy: Policy,
    fleet: Fleet,
    readings: Readings,
    proposals: tuple[Proposal, ...],
    desired: int,
    now: Now,
) -> Overrun | None:
    """The proof to keep: a new one when the queue of ready pods raised the number, or when what raised it is gone
    now that there are more; else the one there is.
    """
    queued = any(
        proposal.type is MetricType.WAITING_REQUESTS
        and (proposal.replicas or 0) + policy.spare_replicas > memory.desired
        for proposal in proposals
    )
    if desired <= memory.desired or not queued:
        return _settled(memory, policy, readings, now) or memory.overrun
    failed, load, descent = min(memory.desired, fleet.ready), readings.in_flight.known, _recent(memory, now)
    if descent is None or descent.pods <= failed or load >= BURST * descent.in_flight:
        return Overrun(failed, load, now.monotonic_s, policy)
    return Overrun(_halfway(failed, descent), min(load, descent.in_flight), now.monotonic_s, policy)


def descend(memory: Memory, readings: Readings, desired: int, now: Now) -> Descent | None:
    """The way down to remember; one that follows another closely goes on with it."""
    if desired >= memory.desired:
        return memory.descent
    begun = _recent(memory, now)
    if begun is None:
        return Descent(memory.desired, readings.in_flight.known, now.monotonic_s)
    return begun._replace(when_s=now.monotonic_s)


def doubt(memory: Memory, policy: Policy, readings: Readings, now: Now) -> Doubt | None:
    """What is open when the load raises the number soon after a way down."""
    descent = memory.descent
    if memory.doubt is not None or descent is None or readings.in_flight.known >= BURST * descent.in_flight:
        return memory.doubt
    if policy.down.window_s < PATIENT_S or now.monotonic_s - descent.when_s >= SETTLING_S:
        return None
    if memory.rise_s is not None and memory.rise_s > descent.when_s:
        return None
    return Doubt(memory.desired, descent.in_flight, None, policy)


def pursue(memory: Memory, policy: Policy, fleet: Fleet, readings: Readings, desired: int, now: Now) -> Doubt | None:
    """What is still open, until it is settled or has lasted too long."""
    known = memory.doubt
    if known is None or known.policy != policy or _settled(memory, policy, readings, now) is not None:
        return None
    if desired < memory.desired and (known.ready_s is None or readings.in_flight.known < ALIKE * known.in_flight):
        return None  # the load went: one that comes back is another
    if known.ready_s is None:
        return known._replace(ready_s=now.monotonic_s) if fleet.ready >= desired else known
    return known if now.monotonic_s - known.ready_s < SETTLING_S else None


def _settled(memory: Memory, policy: Policy, readings: Readings, now: Now) -> Overrun | None:
    """Proof by a load that is what it was before the number went up, now that there are more pods."""
    known, load = memory.doubt, readings.in_flight
    if known is None or known.policy != policy or known.ready_s is None or load.missing:
        return None
    alike = ALIKE * known.in_flight <= load.known and (1 - TOLERANCE) * load.known <= known.in_flight
    if not alike:
        return None
    return Overrun(known.pods, known.in_flight, now.monotonic_s, policy)


def _halfway(failed: int, descent: Descent) -> int:
    return max(failed, failed + (descent.pods - failed) // 2 - 1)


def _recent(memory: Memory, now: Now) -> Descent | None:
    descent = memory.descent
    return descent if descent is not None and now.monotonic_s - descent.when_s < DESCENT_S else None
