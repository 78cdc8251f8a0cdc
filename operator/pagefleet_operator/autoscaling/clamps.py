"""The steps after the raw answer, in the order in which they are taken; each that changes it says so."""

from typing import NamedTuple

from pagefleet_api.behavior import SelectPolicy
from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling import rates
from pagefleet_operator.autoscaling.overruns import floor
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Clamp, Fleet, Memory
from pagefleet_operator.autoscaling.windows import lately, stabilise
from pagefleet_operator.observed import Now


class Answer(NamedTuple):
    """A number on its way through the steps."""

    replicas: int
    clamps: tuple[Clamp, ...] = ()

    def clamp(self, replicas: int, reason: Reason, words: str) -> "Answer":
        """`replicas` in place of the answer so far, and why; nothing is noted when that changes nothing."""
        if replicas == self.replicas:
            return self
        return Answer(replicas, self.note(reason, f"{self.replicas} → {replicas}, {words}").clamps)

    def note(self, reason: Reason, words: str) -> "Answer":
        """The same answer with one more thing said about it."""
        return Answer(self.replicas, (*self.clamps, Clamp(reason, words)))


def remembered(answer: Answer, memory: Memory, policy: Policy, readings: Readings, now: Now) -> Answer:
    """Not below what queued before under a like load."""
    least = min(floor(memory, policy, readings, now), memory.desired)
    return answer.clamp(max(answer.replicas, least), Reason.FEWER_QUEUED, "fewer pods queued under this load before")


def guarded(answer: Answer, policy: Policy, fleet: Fleet, readings: Readings, before: int) -> Answer:
    """No way down while it is not certain that the load fits fewer pods."""
    if answer.replicas >= before:
        return answer
    if fleet.rollout_in_progress:
        return answer.clamp(before, Reason.ROLLOUT_IN_PROGRESS, "no scale-down during a roll-out")
    if not readings.complete:
        return answer.clamp(before, Reason.METRICS_PARTIAL, "a metric is missing for the whole service")
    if readings.coverage < policy.min_coverage:
        words = f"samples from {readings.coverage:.0%} of the pods, minCoverage is {policy.min_coverage:.0%}"
        return answer.clamp(before, Reason.METRICS_PARTIAL, words)
    return answer


def stabilised(answer: Answer, policy: Policy, memory: Memory, now: Now) -> Answer:
    """Held back by the answers in the windows."""
    calm = stabilise(memory.desired, answer.replicas, memory, policy, now.monotonic_s)
    if calm == answer.replicas and lately(memory.held_back_s, now.monotonic_s):
        return answer.note(Reason.STABILIZED, "another answer was held back within the last minute")
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


def _pace(field: str, select: SelectPolicy) -> str:
    if select is SelectPolicy.DISABLED:
        return f"behavior.{field}.selectPolicy is Disabled"
    return f"as far as behavior.{field}.policies allow now"
