from dataclasses import replace

import pytest

from pagefleet_api.behavior import RateUnit, SelectPolicy
from pagefleet_api.reasons import Reason
from pagefleet_operator.autoscaling import Memory, decide, rates
from pagefleet_operator.autoscaling.policy import DOWN, UP, Rate, Rules
from pagefleet_operator.autoscaling.values import Change
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, at, fleet, ready

PODS, PERCENT = RateUnit.PODS, RateUnit.PERCENT
MIN, DISABLED = SelectPolicy.MIN, SelectPolicy.DISABLED


def rules(*allowed: Rate, select: SelectPolicy = SelectPolicy.MAX, tolerance: float = 0.1) -> Rules:
    return Rules(window_s=0, rates=allowed, select=select, tolerance=tolerance)


@pytest.mark.parametrize(
    ("up", "current", "changes", "most"),
    [
        pytest.param(UP, 1, (), 5, id="four pods where that is more than twice"),
        pytest.param(UP, 6, (), 12, id="twice where that is more than four pods"),
        pytest.param(UP, 5, (Change(90, 4),), 5, id="what was added within the period counts"),
        pytest.param(UP, 5, (Change(85, 4),), 10, id="what was added before the period does not"),
        pytest.param(UP, 5, (Change(90, -2),), 14, id="what was taken away within the period gives room"),
        pytest.param(rules(Rate(PERCENT, 10, 60)), 1, (), 2, id="a percentage is rounded up"),
        pytest.param(rules(Rate(PODS, 1, 60)), 9, (Change(95, 5),), 9, id="never below the present number"),
        pytest.param(rules(Rate(PODS, 2, 60), Rate(PERCENT, 300, 60), select=MIN), 4, (), 6, id="Min allows least"),
        pytest.param(rules(Rate(PODS, 2, 60), select=DISABLED), 4, (), 4, id="Disabled allows nothing"),
    ],
)
def test_the_way_up_is_as_fast_as_its_policies(up: Rules, current: int, changes: tuple[Change, ...], most: int) -> None:
    assert rates.most(replace(DEFAULTS, up=up), Memory(current, changes=changes), 100.0) == most


@pytest.mark.parametrize(
    ("down", "current", "changes", "least"),
    [
        pytest.param(DOWN, 9, (), 0, id="all at once by default"),
        pytest.param(rules(Rate(PODS, 2, 60)), 9, (), 7, id="two pods a minute"),
        pytest.param(rules(Rate(PODS, 2, 60)), 8, (Change(70, -1),), 7, id="one of them has gone"),
        pytest.param(rules(Rate(PODS, 2, 60)), 8, (Change(70, -5),), 8, id="never above the present number"),
        pytest.param(rules(Rate(PERCENT, 10, 60)), 9, (), 8, id="a percentage is rounded down"),
        pytest.param(rules(Rate(PODS, 2, 60), Rate(PERCENT, 50, 60), select=MIN), 9, (), 7, id="Min allows least"),
        pytest.param(rules(Rate(PODS, 2, 60), select=DISABLED), 9, (), 9, id="Disabled allows nothing"),
    ],
)
def test_the_way_down_is_as_fast_as_its_policies(
    down: Rules, current: int, changes: tuple[Change, ...], least: int
) -> None:
    assert rates.least(replace(DEFAULTS, down=down), Memory(current, changes=changes), 100.0) == least


def test_a_step_is_answered_as_fast_as_the_policies_allow_and_says_so() -> None:
    policy = replace(DEFAULTS, max_replicas=20)
    memory = Memory(1)
    seen: list[tuple[int, int, Reason]] = []
    for now_s in range(0, 40, 2):
        outcome = decide(policy, fleet(ready(80, 8)), memory, at(now_s))
        memory = outcome.memory
        if not seen or seen[-1][1] != outcome.desired:
            seen.append((now_s, outcome.desired, outcome.limited.reason))
    assert seen == [(0, 5, Reason.SCALE_UP_LIMIT), (16, 10, Reason.SCALE_UP_LIMIT), (32, 20, Reason.WITHIN_RANGE)]
    assert len(memory.changes) == 1
    limited = decide(policy, fleet(ready(80, 8)), Memory(1), at(0))
    assert limited.decision.clamps == ("ScaleUpLimit: 20 → 5, as far as behavior.scaleUp.policies allow now",)
    assert limited.limited.message == "the answer is held at 5, as far as behavior.scaleUp.policies allow now"


def test_a_direction_that_is_disabled_stands_still_and_says_so() -> None:
    policy = replace(DEFAULTS, down=rules(Rate(PODS, 9, 1), select=DISABLED))
    outcome = decide(policy, fleet(ready(), ready(), ready()), Memory(3), at(0))
    assert outcome.desired == 3
    assert outcome.decision.clamps == ("ScaleDownLimit: 1 → 3, behavior.scaleDown.selectPolicy is Disabled",)


def test_each_direction_has_its_tolerance() -> None:
    policy = replace(DEFAULTS, waiting_target=None, kv_target=None, in_flight_target=4)
    eager = replace(policy, up=rules(Rate(PODS, 9, 1), tolerance=0.0))
    patient = replace(policy, down=rules(Rate(PODS, 9, 1), tolerance=0.6))
    busy, idle = fleet(*[ready(0, 4)] * 9, ready(0, 5)), fleet(ready(0, 3), ready(0, 1))
    numbers = [decide(each, busy, Memory(10), at(0)).desired for each in (policy, eager)]
    assert numbers == [6, 6]
    busier = replace(eager, max_replicas=20)
    assert decide(busier, busy, Memory(10), at(0)).desired == 11
    assert [decide(each, idle, Memory(2), at(0)).desired for each in (policy, patient)] == [1, 2]


def test_a_load_that_moves_while_a_rate_holds_it_changes_no_condition() -> None:
    policy = replace(DEFAULTS, max_replicas=60, up=rules(Rate(PODS, 1, 1800)))
    memory, said = Memory(1), set()
    for number in range(20):
        outcome = decide(policy, fleet(ready(60 + number, 8), ready(0, 8)), memory, at(2.0 * number))
        memory = outcome.memory
        said.add(outcome.limited)
    assert said == {outcome.limited}
    assert outcome.limited.reason is Reason.SCALE_UP_LIMIT
