"""The decision: raw answer, then each clamp in order, each kept in words."""

from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling import explain, rates
from pagefleet_operator.autoscaling.clamps import Answer, bounded, guarded, paced, remembered, stabilised
from pagefleet_operator.autoscaling.overruns import learn
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.proposals import Proposal, fewest, propose
from pagefleet_operator.autoscaling.readings import Readings, read
from pagefleet_operator.autoscaling.values import Fleet, Memory, Outcome
from pagefleet_operator.autoscaling.windows import held_back_s, remember
from pagefleet_operator.observed import Now

BLIND_S = 300.0
"""So long without any sample of ready pods, and `fallbackReplicas` is a floor."""


def decide(policy: Policy, fleet: Fleet, memory: Memory | None, now: Now) -> Outcome:
    """Replicas for `fleet`, and why. Keep `outcome.memory` for the next call; None after a restart.

    Order: raw answer with tolerance and pending guard, not below what queued before, no way down in a roll-out
    or on missing metrics, stabilisation, rates, bounds. Without a single fresh sample the number stays as it is.
    """
    memory = memory or _seed(policy, fleet, now)
    readings = read(fleet, policy)
    proposals = propose(policy, readings, memory.desired)
    blind_since_s = _blind_since(readings, fleet, memory, now)
    raw = _raw(policy, fleet, readings, proposals, memory.desired)
    raw = _fallen_back(raw, policy, blind_since_s, now)
    raw = remembered(raw, memory, policy, readings, now)
    answer = guarded(raw, policy, fleet, readings, memory.desired)
    calm = stabilised(answer, policy, memory, now)
    final = bounded(paced(calm, policy, memory, now), policy)
    kept = Memory(
        desired=final.replicas,
        answers=remember(memory, answer.replicas, policy, now.monotonic_s),
        began_s=memory.began_s,
        overrun=learn(memory, policy, fleet, readings, proposals, final.replicas, now),
        held_back_s=held_back_s(memory, answer.replicas, calm.replicas, final.replicas, now.monotonic_s),
        changes=rates.remember(memory, final.replicas, policy, now.monotonic_s),
        blind_since_s=blind_since_s,
    )
    began = _began(memory, policy, now)
    view = explain.View(policy, fleet, readings, proposals, began, memory.desired, answer.replicas, *final)
    return Outcome(
        decision=explain.decision(view, now),
        memory=kept,
        active=explain.active(view),
        able=explain.able(view),
        limited=explain.limited(view),
        targets=explain.targets(view),
        oldest_sample_age_s=readings.oldest_age_s,
        watch_closely=explain.watch_closely(view),
        acts=policy.acts,
        event=explain.event(view),
    )


def _seed(policy: Policy, fleet: Fleet, now: Now) -> Memory:
    current = policy.min_replicas if fleet.current is None else fleet.current
    return Memory(current, ((now.monotonic_s, current),), now.monotonic_s)


def _began(memory: Memory, policy: Policy, now: Now) -> bool:
    return memory.began_s is not None and now.monotonic_s - memory.began_s < policy.max_age_s


def _blind_since(readings: Readings, fleet: Fleet, memory: Memory, now: Now) -> float | None:
    if not readings.empty or not fleet.ready:
        return None
    return now.monotonic_s if memory.blind_since_s is None else memory.blind_since_s


def _raw(policy: Policy, fleet: Fleet, readings: Readings, proposals: tuple[Proposal, ...], before: int) -> Answer:
    """The largest answer of all metrics when it is above `before`; else the fewest pods that hold the load.

    Every answer is in pods that were asked for, ready or not, so a slow start is never answered twice.
    """
    if readings.empty:
        return Answer(before)
    asked = max((proposal.replicas for proposal in proposals if proposal.replicas is not None), default=0)
    if asked > before:
        return Answer(asked)
    answer = Answer(min(before, max(asked, fewest(policy, readings, before))))
    if policy.acts and fleet.ready < asked:
        words = f"{asked} asked for, {fleet.ready} of {before} ready, the others are on their way"
        return answer.note(Reason.PENDING_PODS, words)
    return answer


def _fallen_back(raw: Answer, policy: Policy, blind_since_s: float | None, now: Now) -> Answer:
    floor = policy.fallback_replicas
    if floor is None or blind_since_s is None or now.monotonic_s - blind_since_s < BLIND_S:
        return raw
    words = f"no pod gave a sample for {BLIND_S / 60:g} min, missingMetrics.fallbackReplicas is {floor}"
    return raw.clamp(max(raw.replicas, floor), Reason.FALLBACK_REPLICAS, words)
