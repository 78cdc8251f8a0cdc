"""The decision: raw answer, then each clamp in order, each kept in words."""

from dataclasses import replace
from typing import NamedTuple

from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling import clamps, explain, latency, rates, trend
from pagefleet_operator.autoscaling.clamps import Answer
from pagefleet_operator.autoscaling.overruns import descend, doubt, learn, pursue
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.proposals import Proposal, fewest, propose, propose_latency
from pagefleet_operator.autoscaling.readings import Readings, read
from pagefleet_operator.autoscaling.values import Fleet, Memory, Outcome
from pagefleet_operator.autoscaling.windows import held_back_s, remember
from pagefleet_operator.facts.observed import Now

BLIND_S = 300.0
"""So long without any sample of ready pods, and `fallbackReplicas` is a floor."""


class _Steps(NamedTuple):
    """The answer at the three points that are remembered."""

    answer: Answer
    """Before stabilisation."""
    calm: Answer
    final: Answer


def decide(policy: Policy, fleet: Fleet, memory: Memory | None, now: Now) -> Outcome:
    """Replicas for `fleet`, and why. Keep `outcome.memory` for the next call; None after a restart.

    Order: raw answer with tolerance and pending guard, look-ahead, spare pods, not below what was too few before, no
    way down in a roll-out or on missing metrics, stabilisation, rates, schedules, bounds, room in the cluster.
    Without a single fresh sample the number stays as it is.
    """
    memory = memory or _seed(policy, fleet, now)
    readings = read(fleet, policy)
    proposals = _proposals(policy, fleet, memory, readings)
    blind = _blind_since(readings, fleet, memory, now)
    raw = _fallen_back(_raw(policy, fleet, readings, proposals, memory), policy, blind, now)
    steps = _clamped(raw, policy, fleet, readings, memory, now)
    began = _began(memory, policy, now)
    view = explain.View(policy, fleet, readings, proposals, began, memory.desired, steps.answer.replicas, *steps.final)
    return Outcome(
        decision=explain.decision(view, now),
        memory=_kept(policy, fleet, readings, proposals, steps, replace(memory, blind_since_s=blind), now),
        active=explain.active(view),
        able=explain.able(view),
        limited=explain.limited(view),
        targets=explain.targets(view),
        oldest_sample_age_s=readings.oldest_age_s,
        watch_closely=explain.watch_closely(view),
        measures=policy.ttft_target_s is not None,
        acts=policy.acts,
        event=explain.event(view),
    )


def _clamped(raw: Answer, policy: Policy, fleet: Fleet, readings: Readings, memory: Memory, now: Now) -> _Steps:
    proven = clamps.remembered(raw, memory, policy, readings, now)
    answer = clamps.guarded(proven, policy, fleet, readings, memory.desired)
    calm = clamps.stabilised(answer, policy, memory, now)
    bounded = clamps.bounded(clamps.scheduled(clamps.paced(calm, policy, memory, now), policy, now), policy)
    return _Steps(answer, calm, clamps.roomed(bounded, policy, fleet, memory.desired))


def _kept(
    policy: Policy,
    fleet: Fleet,
    readings: Readings,
    proposals: tuple[Proposal, ...],
    steps: _Steps,
    memory: Memory,
    now: Now,
) -> Memory:
    answer, calm, desired = (step.replicas for step in steps)
    grown = min(calm, desired) > memory.desired and not readings.empty  # by the load, and no schedule or bound
    return Memory(
        desired=desired,
        answers=remember(memory, answer, policy, now.monotonic_s),
        began_s=memory.began_s,
        descent=descend(memory, readings, desired, now),
        rise_s=now.monotonic_s if desired > memory.desired else memory.rise_s,
        doubt=doubt(memory, policy, readings, now) if grown else pursue(memory, policy, fleet, readings, desired, now),
        overrun=learn(memory, policy, fleet, readings, proposals, desired, now),
        held_back_s=held_back_s(memory, answer, calm, desired, now.monotonic_s),
        changes=rates.remember(memory, desired, policy, now.monotonic_s),
        blind_since_s=memory.blind_since_s,
        trend=trend.remember(memory, readings, now),
        marks=latency.remember(memory, fleet, desired, now),
        ready=fleet.ready,
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


def _proposals(policy: Policy, fleet: Fleet, memory: Memory, readings: Readings) -> tuple[Proposal, ...]:
    carrying = policy.carrying(memory.desired)
    ready = max(fleet.ready - policy.spare_replicas, 1)
    slow = propose_latency(policy, latency.latest(fleet, memory), ready, carrying)
    return (*propose(policy, readings, carrying), *slow)


def _raw(policy: Policy, fleet: Fleet, readings: Readings, proposals: tuple[Proposal, ...], memory: Memory) -> Answer:
    """The largest answer of all metrics when it is above the number; else the fewest pods that hold the load.

    Every answer is in pods that were asked for, ready or not, so a slow start is never answered twice. With what a
    growing load will need, and the spare pods on top.
    """
    before = memory.desired
    if readings.empty:
        return Answer(before)
    carrying = policy.carrying(before)
    asked = max((proposal.replicas for proposal in proposals if proposal.replicas is not None), default=0)
    if asked > carrying:
        answer = Answer(asked)
    else:
        answer = Answer(min(carrying, max(asked, fewest(policy, readings, carrying))))
        if policy.acts and fleet.ready < asked:
            words = f"{asked} asked for, {fleet.ready} of {before} ready, the others are on their way"
            answer = answer.note(Reason.PENDING_PODS, words)
    return clamps.spared(clamps.ahead(answer, policy, fleet, memory, readings), policy)


def _fallen_back(raw: Answer, policy: Policy, blind_since_s: float | None, now: Now) -> Answer:
    floor = policy.fallback_replicas
    if floor is None or blind_since_s is None or now.monotonic_s - blind_since_s < BLIND_S:
        return raw
    words = f"no pod gave a sample for {BLIND_S / 60:g} min, missingMetrics.fallbackReplicas is {floor}"
    return raw.clamp(max(raw.replicas, floor), Reason.FALLBACK_REPLICAS, words)
