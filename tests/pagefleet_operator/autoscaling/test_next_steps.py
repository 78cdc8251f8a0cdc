"""What is said of the next steps is what happens."""

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pagefleet_api.behavior import RateUnit, SelectPolicy
from pagefleet_api.explanation import NextSteps
from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling import Memory, Policy, decide, next_steps
from pagefleet_operator.autoscaling.policy import DOWN, UP, Rate
from pagefleet_operator.autoscaling.schedules import Schedule
from pagefleet_operator.autoscaling.values import Change, Fleet, Overrun
from pagefleet_operator.facts.observed import Now
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, SILENT, UNPLACED, at, calm, fleet, ready
from tests.pagefleet_operator.autoscaling.test_latency import POLICY as BY_LATENCY
from tests.pagefleet_operator.autoscaling.test_latency import timed

QUICK = replace(
    DEFAULTS,
    max_replicas=1000,
    max_num_seqs=1000,
    up=replace(UP, rates=(Rate(RateUnit.PERCENT, 1_000_000, 1),)),
    down=replace(DOWN, window_s=0),
)


def steps(pods: Fleet, policy: Policy = DEFAULTS, memory: Memory | None = None) -> NextSteps:
    return next_steps(policy, pods, memory or calm(len(pods.pods)), at(0))


def test_the_next_steps_of_a_queue_and_of_seats() -> None:
    found = steps(fleet(ready(2, 8), ready(1, 6, kv=0.5)))
    assert {each.type: (each.demand, round(each.limit, 2)) for each in found.up} == {
        MetricType.WAITING_REQUESTS: (3, 8.8),
        MetricType.KV_CACHE_USAGE: (0.5, 1.65),
    }
    assert {each.type: (each.demand, round(each.limit, 2)) for each in found.down} == {
        MetricType.WAITING_REQUESTS: (3, 4),
        MetricType.IN_FLIGHT_REQUESTS: (17, 7.2),
        MetricType.KV_CACHE_USAGE: (0.5, 0.75),
    }
    assert (found.up_held_by, found.down_held_by) == ((), ())


in_flight = st.lists(st.integers(0, 60), min_size=1, max_size=6)


@given(in_flight, st.integers(1, 40), st.integers(-3, 3), st.booleans())
def test_a_demand_above_its_limit_raises_the_number_and_one_below_does_not(
    shares: list[int], target: int, beyond: int, spare: bool
) -> None:
    policy = replace(QUICK, waiting_target=None, kv_target=None, in_flight_target=target, spare_replicas=int(spare))
    assume(len(shares) > spare)
    pods = fleet(*[ready(0, share) for share in shares])
    (limit,) = [each.limit for each in steps(pods, policy).up]
    demand = max(round(limit) + beyond, 0)
    assume(abs(demand - limit) > 1e-6)
    moved = fleet(ready(0, demand), *[ready() for _ in shares[1:]])
    assert (decide(policy, moved, calm(len(shares)), at(0)).desired > len(shares)) is (demand > limit)


@given(in_flight, st.integers(1, 40), st.integers(-3, 3), st.integers(0, 2))
def test_a_demand_within_its_limit_lowers_the_number_and_one_above_does_not(
    shares: list[int], target: int, beyond: int, silent: int
) -> None:
    policy = replace(QUICK, waiting_target=None, kv_target=None, in_flight_target=target, min_coverage=0.0)
    number = len(shares) + silent
    pods = fleet(*[ready(0, share) for share in shares], *[SILENT] * silent)
    (limit,) = [each.limit for each in steps(pods, policy).down if each.type == MetricType.IN_FLIGHT_REQUESTS]
    known = round(limit) + beyond - silent * target
    assume(known >= 0 and abs(known + silent * target - limit) > 1e-6 and number > 1)
    moved = fleet(ready(0, known), *[ready() for _ in shares[1:]], *[SILENT] * silent)
    outcome = decide(policy, moved, calm(number), at(0))
    assert (outcome.desired < number) is (known + silent * target <= limit)


def test_latency_has_a_limit_of_its_own() -> None:
    found = steps(fleet(timed("a", 0, 0)), BY_LATENCY)
    assert [(each.type, each.demand, round(each.limit, 3)) for each in found.up] == [
        (MetricType.TIME_TO_FIRST_TOKEN, 0, 0.55)
    ]


@pytest.mark.parametrize("window_s", [0, 30, 300])
def test_the_number_falls_when_it_was_said_and_not_before(window_s: int) -> None:
    policy = replace(DEFAULTS, down=replace(DOWN, window_s=window_s, rates=(Rate(RateUnit.PODS, 1, 60),)))
    outcome = decide(policy, fleet(*[ready(0, 7)] * 4), calm(4), at(0))
    idle, fell, said = fleet(*[ready()] * 4), [], []
    for now_s in range(1, 700):
        outcome = decide(policy, idle, outcome.memory, at(now_s))
        after_s = next_steps(policy, idle, outcome.memory, at(now_s)).down_after_seconds
        said.append(None if after_s is None else now_s + after_s)
        if outcome.decision.before != outcome.desired:
            fell.append(now_s)
    assert len(fell) == 3
    for when_s in fell[1:]:
        assert said[when_s - 2] == pytest.approx(when_s, abs=1)
    assert said[0] == pytest.approx(fell[0] if window_s else fell[1], abs=1)


def test_what_holds_the_number_is_said() -> None:
    always = Schedule("always", ZoneInfo("UTC"), frozenset(range(7)), 0, 1440, 2, 2)
    policy = replace(DEFAULTS, min_replicas=2, max_replicas=2, schedules=(always,))
    full = replace(
        fleet(ready(), UNPLACED._replace(placed=False), rollout=True), unplaced_words="no room", rival="team/chat"
    )
    found = next_steps(policy, full, calm(2), Now(datetime(2026, 1, 1, tzinfo=UTC), 0))
    assert found.up_held_by == (
        "maxReplicas is 2",
        "always until 24:00 UTC: maxReplicas is 2",
        "1 of 2 find no place: no room",
        "team/chat has a higher priority and finds no place for its pods",
    )
    assert found.down_held_by == (
        "minReplicas is 2",
        "always until 24:00 UTC: minReplicas is 2",
        "a roll-out is under way",
    )
    assert found.down_after_seconds is None


def test_a_number_that_was_too_small_for_this_load_is_said_with_what_ends_that() -> None:
    memory = replace(calm(3), overrun=Overrun(2, 16, at(0).monotonic_s, DEFAULTS))
    words = "2 were too few for this load: for 3000 s, or until fewer than 12 are in flight"
    for in_flight, said in ((12, (words,)), (11, ())):
        pods = fleet(ready(running=in_flight), ready(), ready())
        assert next_steps(DEFAULTS, pods, memory, at(600)).down_held_by == said
        assert (decide(DEFAULTS, pods, memory, at(600)).desired == 3) is bool(said)
    more = fleet(*[ready(running=4)] * 4)
    assert next_steps(DEFAULTS, more, replace(memory, desired=4), at(600)).down_held_by == ()


def test_missing_samples_and_disabled_directions_hold_it_too() -> None:
    still = replace(
        DEFAULTS, up=replace(UP, select=SelectPolicy.DISABLED), down=replace(DOWN, select=SelectPolicy.DISABLED)
    )
    found = steps(fleet(ready(), SILENT, SILENT), still)
    assert found.up_held_by == ("behavior.scaleUp allows no more now",)
    assert found.down_held_by == (
        "samples from 33 % of the pods, minCoverage is 50 %",
        "behavior.scaleDown never allows it",
    )
    assert steps(fleet(SILENT, SILENT)).down_held_by == ("a metric is missing for the whole service",)


def test_a_rate_is_waited_for() -> None:
    policy = replace(DEFAULTS, down=replace(DOWN, window_s=0, rates=(Rate(RateUnit.PODS, 1, 60),)))
    memory = Memory(3, changes=(Change(980.0, -1), Change(960.0, -1)))
    assert next_steps(policy, fleet(*[ready()] * 3), memory, at(0)).down_after_seconds == 40
