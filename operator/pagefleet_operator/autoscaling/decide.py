"""The decision: raw answer, then each clamp in order, each kept in words."""

from typing import NamedTuple

from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling import explain
from pagefleet_operator.autoscaling.overruns import floor, learn
from pagefleet_operator.autoscaling.proposals import Proposal, fewest, propose
from pagefleet_operator.autoscaling.readings import Readings, read
from pagefleet_operator.autoscaling.values import Clamp, Fleet, Memory, Outcome, Policy
from pagefleet_operator.autoscaling.windows import held_back_s, lately, remember, stabilise
from pagefleet_operator.observed import Now


class _Answer(NamedTuple):
    replicas: int
    clamps: tuple[Clamp, ...] = ()

    def clamp(self, replicas: int, reason: Reason, words: str) -> "_Answer":
        """`replicas` in place of the answer so far, and why; nothing is noted when that changes nothing."""
        if replicas == self.replicas:
            return self
        return _Answer(replicas, self.note(reason, f"{self.replicas} → {replicas}, {words}").clamps)

    def note(self, reason: Reason, words: str) -> "_Answer":
        """The same answer with one more thing said about it."""
        return _Answer(self.replicas, (*self.clamps, Clamp(reason, words)))


def decide(policy: Policy, fleet: Fleet, memory: Memory | None, now: Now) -> Outcome:
    """Replicas for `fleet`, and why. Keep `outcome.memory` for the next call; None after a restart.

    Order: raw answer with tolerance, pending guard, not below what queued before, no way down in a roll-out
    or on missing metrics, stabilisation, bounds. Without a single fresh sample the number stays as it is.
    """
    memory = memory or _seed(policy, fleet, now)
    before = memory.desired
    readings = read(fleet, policy)
    proposals = propose(policy, readings, before)
    raw = _raw(readings, proposals, fleet, policy, before)
    answer = _guarded(policy, fleet, readings, _remembered(raw, memory, policy, readings, now), before)
    calm = _stabilised(policy, answer, memory, now)
    final = _bounded(policy, calm)
    kept = Memory(
        final.replicas,
        remember(memory, answer.replicas, policy, now.monotonic_s),
        memory.began_s,
        learn(memory, policy, fleet, readings, proposals, final.replicas, now),
        held_back_s(memory, answer.replicas, calm.replicas, final.replicas, now.monotonic_s),
    )
    view = explain.View(
        policy, fleet, readings, proposals, _began(memory, policy, now), before, answer.replicas, *final
    )
    return Outcome(
        decision=explain.decision(view, now),
        memory=kept,
        active=explain.active(view),
        able=explain.able(view),
        limited=explain.limited(view),
        targets=explain.targets(view),
        oldest_sample_age_s=readings.oldest_age_s,
        watch_closely=explain.watch_closely(view),
        event=explain.event(view),
    )


def _seed(policy: Policy, fleet: Fleet, now: Now) -> Memory:
    current = policy.min_replicas if fleet.current is None else fleet.current
    return Memory(current, ((now.monotonic_s, current),), now.monotonic_s)


def _began(memory: Memory, policy: Policy, now: Now) -> bool:
    return memory.began_s is not None and now.monotonic_s - memory.began_s < policy.max_age_s


def _raw(readings: Readings, proposals: tuple[Proposal, ...], fleet: Fleet, policy: Policy, before: int) -> _Answer:
    """The largest answer of all metrics when it is above `before`; else the fewest pods that hold the load.

    Every answer is in pods that were asked for, ready or not, so a slow start is never answered twice.
    """
    if readings.empty:
        return _Answer(before)
    asked = max((proposal.replicas for proposal in proposals if proposal.replicas is not None), default=0)
    if asked > before:
        return _Answer(asked)
    answer = _Answer(min(before, max(asked, fewest(policy, readings, before))))
    if fleet.ready < asked:
        words = f"{asked} asked for, {fleet.ready} of {before} ready, the others are on their way"
        return answer.note(Reason.PENDING_PODS, words)
    return answer


def _remembered(raw: _Answer, memory: Memory, policy: Policy, readings: Readings, now: Now) -> _Answer:
    least = min(floor(memory, policy, readings, now), memory.desired)
    return raw.clamp(max(raw.replicas, least), Reason.FEWER_QUEUED, "fewer pods queued under this load before")


def _guarded(policy: Policy, fleet: Fleet, readings: Readings, raw: _Answer, before: int) -> _Answer:
    """No way down while it is not certain that the load fits fewer pods."""
    if raw.replicas >= before:
        return raw
    if fleet.rollout_in_progress:
        return raw.clamp(before, Reason.ROLLOUT_IN_PROGRESS, "no scale-down during a roll-out")
    if not readings.complete:
        return raw.clamp(before, Reason.METRICS_PARTIAL, "a metric is missing for the whole service")
    if readings.coverage < policy.min_coverage:
        words = f"samples from {readings.coverage:.0%} of the pods, minCoverage is {policy.min_coverage:.0%}"
        return raw.clamp(before, Reason.METRICS_PARTIAL, words)
    return raw


def _stabilised(policy: Policy, answer: _Answer, memory: Memory, now: Now) -> _Answer:
    calm = stabilise(memory.desired, answer.replicas, memory, policy, now.monotonic_s)
    if calm == answer.replicas and lately(memory.held_back_s, now.monotonic_s):
        return answer.note(Reason.STABILIZED, "another answer was held back within the last minute")
    window_s = policy.down_window_s if calm > answer.replicas else policy.up_window_s
    extreme = "highest" if calm > answer.replicas else "lowest"
    return answer.clamp(calm, Reason.STABILIZED, f"the {extreme} answer of the last {window_s:g} s")


def _bounded(policy: Policy, answer: _Answer) -> _Answer:
    capped = answer.clamp(
        min(answer.replicas, policy.max_replicas), Reason.TOO_MANY_REPLICAS, f"maxReplicas is {policy.max_replicas}"
    )
    return capped.clamp(
        max(capped.replicas, policy.min_replicas), Reason.TOO_FEW_REPLICAS, f"minReplicas is {policy.min_replicas}"
    )
