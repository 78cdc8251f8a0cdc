"""The steps after the raw answer, in the order in which they are taken; each that changes it says so."""

from typing import NamedTuple

from pagefleet_api.behavior import SelectPolicy
from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling import rates, trend
from pagefleet_operator.autoscaling.overruns import floor
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.schedules import bounds
from pagefleet_operator.autoscaling.values import Clamp, Fleet, Memory
from pagefleet_operator.autoscaling.windows import lately, stabilise
from pagefleet_operator.facts.observed import Now


class Answer(NamedTuple):
    """A number on its way through the steps."""

    replicas: int
    clamps: tuple[Clamp, ...] = ()

    def clamp(self, replicas: int, reason: Reason, words: str) -> "Answer":
        """`replicas` in place of the answer so far, and why; nothing is noted when that changes nothing."""
        if replicas == self.replicas:
            return self
        return Answer(replicas, (*self.clamps, Clamp(reason, f"{self.replicas} → {replicas}, {words}", words)))

    def note(self, reason: Reason, words: str) -> "Answer":
        """The same answer with one more thing said about it."""
        return Answer(self.replicas, (*self.clamps, Clamp(reason, words, words)))


def ahead(answer: Answer, policy: Policy, fleet: Fleet, memory: Memory, readings: Readings) -> Answer:
    """Not below what a load that grows steadily will need by the time that a new pod is ready."""
    horizon_s = fleet.cold_start_s if policy.lookahead_s is None else policy.lookahead_s
    expected = trend.forecast(memory.trend, horizon_s) if horizon_s else None
    if expected is None:
        return answer
    words = f"{expected.in_flight:.0f} in flight are expected in {horizon_s:.0f} s, {expected.per_s:+.2g} each second"
    needed = trend.pods(policy, readings, expected)
    return answer.clamp(max(answer.replicas, needed), Reason.LOOKAHEAD, words)


def spared(answer: Answer, policy: Policy) -> Answer:
    """And the pods that the user wants beside those that the load needs."""
    words = f"spareReplicas is {policy.spare_replicas}"
    return answer.clamp(answer.replicas + policy.spare_replicas, Reason.SPARE_REPLICAS, words)


def remembered(answer: Answer, memory: Memory, policy: Policy, readings: Readings, now: Now) -> Answer:
    """Not below what a like load outgrew before."""
    least = min(floor(memory, policy, readings, now), memory.desired)
    return answer.clamp(max(answer.replicas, least), Reason.FEWER_QUEUED, "fewer were too few for this load before")


def guarded(answer: Answer, policy: Policy, fleet: Fleet, readings: Readings, before: int) -> Answer:
    """No way down while it is not certain that the load fits fewer pods."""
    if answer.replicas == before and not (readings.complete or readings.empty):
        return answer.note(Reason.METRICS_PARTIAL, "a metric is missing for the whole service: nothing goes down")
    if answer.replicas >= before:
        return answer
    if fleet.rollout_in_progress:
        return answer.clamp(before, Reason.ROLLOUT_IN_PROGRESS, "no scale-down during a roll-out")
    thin = readings.thin(policy)
    return answer if thin is None else answer.clamp(before, Reason.METRICS_PARTIAL, thin)


def stabilised(answer: Answer, policy: Policy, memory: Memory, now: Now) -> Answer:
    """Held back by the answers in the windows."""
    calm = stabilise(memory.desired, answer.replicas, memory, policy, now.monotonic_s)
    if calm == answer.replicas and lately(memory.held_back_s, now.monotonic_s):
        words = "until less than a minute ago the stabilisation window held another answer back"
        return answer.note(Reason.STABILIZED, words)
    window_s = policy.down.window_s if calm > answer.replicas else policy.up.window_s
    extreme = "highest" if calm > answer.replicas else "lowest"
    return answer.clamp(calm, Reason.STABILIZED, f"the {extreme} answer of the last {window_s:g} s")


def paced(answer: Answer, policy: Policy, memory: Memory, now: Now) -> Answer:
    """Within what `behavior` allows the number to move now."""
    if answer.replicas > memory.desired:
        most = rates.most(policy, memory, now.monotonic_s)
        words = _pace("scaleUp", policy.up.select)
        return answer.clamp(min(answer.replicas, most), Reason.SCALE_UP_LIMIT, words)
    least = rates.least(policy, memory, now.monotonic_s)
    return answer.clamp(max(answer.replicas, least), Reason.SCALE_DOWN_LIMIT, _pace("scaleDown", policy.down.select))


def bounded(answer: Answer, policy: Policy) -> Answer:
    """Within `minReplicas` and `maxReplicas`."""
    capped = answer.clamp(
        min(answer.replicas, policy.max_replicas), Reason.TOO_MANY_REPLICAS, f"maxReplicas is {policy.max_replicas}"
    )
    return capped.clamp(
        max(capped.replicas, policy.min_replicas), Reason.TOO_FEW_REPLICAS, f"minReplicas is {policy.min_replicas}"
    )


def scheduled(answer: Answer, policy: Policy, now: Now) -> Answer:
    """Within the bounds by the clock."""
    found = bounds(policy.schedules, now.wall)
    if found.lowered_by is not None and found.most is not None:
        words = f"{found.lowered_by.until}: maxReplicas is {found.most}"
        answer = answer.clamp(min(answer.replicas, found.most), Reason.SCHEDULED, words)
    if found.raised_by is not None and found.least is not None:
        words = f"{found.raised_by.until}: minReplicas is {found.least}"
        answer = answer.clamp(max(answer.replicas, found.least), Reason.SCHEDULED, words)
    return answer


def roomed(answer: Answer, policy: Policy, fleet: Fleet, before: int) -> Answer:
    """No more pods than the cluster has room for, as far as pods without a place tell; never below the minimum.

    Those that wait for a place stay: they get it as soon as there is room. Where a service of higher priority waits
    too, they go, so that the next room is that one's.
    """
    if not policy.acts:
        return answer
    if fleet.unplaced:
        reason = Reason.CLUSTER_CAPACITY if fleet.resource is None else Reason.GPU_CAPACITY
        words = f"{fleet.unplaced} of {before} find no place: {fleet.unplaced_words}"
        most = max(before, policy.min_replicas)
        answer = answer.note(reason, words) if answer.replicas <= most else answer.clamp(most, reason, words)
    return _yielding(answer, policy, fleet, before)


def _yielding(answer: Answer, policy: Policy, fleet: Fleet, before: int) -> Answer:
    if fleet.rival is None:
        return answer
    placed = before if fleet.rollout_in_progress else max(before - fleet.unplaced, 0)
    words = f"{fleet.rival} has a higher priority and finds no place for its pods"
    return answer.clamp(min(answer.replicas, max(placed, policy.min_replicas)), Reason.YIELDS_ROOM, words)


def _pace(field: str, select: SelectPolicy) -> str:
    if select is SelectPolicy.DISABLED:
        return f"behavior.{field}.selectPolicy is Disabled"
    return f"as far as behavior.{field}.policies allow now"
