"""How far the number may move now, as HorizontalPodAutoscaler v2's rate policies say.

Source: `calculateScaleUpLimitWithScalingRules` and `calculateScaleDownLimitWithBehaviors` in
kubernetes/pkg/controller/podautoscaler/horizontal.go.
"""

import math

from pagefleet_api.behavior import RateUnit, SelectPolicy
from pagefleet_operator.autoscaling.policy import Policy, Rate, Rules
from pagefleet_operator.autoscaling.values import Change, Memory


def most(policy: Policy, memory: Memory, now_s: float) -> int:
    """The largest number that the rates upwards allow at this moment, at least the present one."""
    rules, current = policy.up, memory.desired
    choose = min if rules.select is SelectPolicy.MIN else max
    allowed = [_above(rate, _at_period_start(rate, memory, now_s)) for rate in _rates(rules)]
    return max(choose(allowed, default=current), current)


def least(policy: Policy, memory: Memory, now_s: float) -> int:
    """The smallest number that the rates downwards allow at this moment, at most the present one."""
    rules, current = policy.down, memory.desired
    choose = max if rules.select is SelectPolicy.MIN else min
    allowed = [_below(rate, _at_period_start(rate, memory, now_s)) for rate in _rates(rules)]
    return min(choose(allowed, default=current), current)


def remember(memory: Memory, desired: int, policy: Policy, now_s: float) -> tuple[Change, ...]:
    """The changes that a rate may still look back on, with the one from `memory.desired` to `desired`."""
    horizon_s = now_s - max(rate.period_s for rate in (*policy.up.rates, *policy.down.rates))
    kept = tuple(change for change in memory.changes if change.when_s > horizon_s)
    return kept if desired == memory.desired else (*kept, Change(now_s, desired - memory.desired))


def _rates(rules: Rules) -> tuple[Rate, ...]:
    return () if rules.select is SelectPolicy.DISABLED else rules.rates


def _at_period_start(rate: Rate, memory: Memory, now_s: float) -> int:
    since_s = now_s - rate.period_s
    return memory.desired - sum(change.by for change in memory.changes if change.when_s > since_s)


def _above(rate: Rate, start: int) -> int:
    """Rounded up: else a small number times a small percentage would never grow."""
    if rate.unit is RateUnit.PODS:
        return start + rate.value
    return math.ceil(start * (1 + rate.value / 100))


def _below(rate: Rate, start: int) -> int:
    if rate.unit is RateUnit.PODS:
        return start - rate.value
    return int(start * (1 - rate.value / 100))
