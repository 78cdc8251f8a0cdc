"""A load that grows steadily is answered as far ahead as a pod takes to start; nothing else is."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.autoscaling import Memory, Outcome, decide, trend
from pagefleet_operator.autoscaling.values import Fleet, Point
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, SILENT, at, calm, fleet, load, ready

POLICY = replace(DEFAULTS, max_replicas=50, waiting_target=None, in_flight_target=8)


def line(level: float, slope: float, count: int = 15, noise: float = 0.0) -> tuple[Point, ...]:
    dice = random.Random(count)
    return tuple(Point(4.0 * n, level + slope * 4.0 * n + dice.uniform(-noise, noise)) for n in range(count))


def seen(running: int, cold_start_s: float | None = 60.0) -> Fleet:
    """As many pods of eight seats as there are requests for, all of them ready."""
    pods = max(-(-running // 8), 1)
    shares = [running // pods + (number < running % pods) for number in range(pods)]
    return replace(fleet(*[ready(0, share) for share in shares]), cold_start_s=cold_start_s)


def watched(loads: list[int], cold_start_s: float | None = 60.0, lookahead_s: float | None = None) -> list[Outcome]:
    memory: Memory | None = None
    outcomes = []
    for number, running in enumerate(loads):
        policy = replace(POLICY, lookahead_s=lookahead_s)
        outcome = decide(policy, seen(running, cold_start_s), memory, at(4.0 * number))
        memory = outcome.memory
        outcomes.append(outcome)
    return outcomes


def test_a_line_is_drawn_out_to_the_cold_start() -> None:
    expected = trend.forecast(line(10, 0.25), 60)
    assert expected is not None
    assert (expected.per_s, expected.in_flight, expected.growth) == pytest.approx((0.25, 39, 39 / 24))


def test_no_line_leads_to_more_than_twice_the_load() -> None:
    expected = trend.forecast(line(10, 0.25), 6000)
    assert expected is not None and expected.in_flight == pytest.approx(48)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(line(10, 0.25, count=5), id="too few points"),
        pytest.param(tuple(Point(n, n) for n in range(15)), id="too short a time"),
        pytest.param(line(40, -0.25), id="a load that falls"),
        pytest.param(line(10, 0.0), id="a load that stays"),
        pytest.param(line(10, 0.01, noise=3), id="noise"),
        *[
            pytest.param(
                tuple(Point(4.0 * n, 5 if n < at_point else 60) for n in range(15)), id=f"a step at {at_point}"
            )
            for at_point in range(1, 15)
        ],
        pytest.param(tuple(Point(4.0 * n, 60 if n == 7 else 5) for n in range(15)), id="a spike"),
    ],
)
def test_what_is_no_steady_growth_has_no_forecast(points: tuple[Point, ...]) -> None:
    assert trend.forecast(points, 600) is None


@given(st.lists(st.floats(0, 1000), min_size=6, max_size=16), st.floats(0, 3600))
def test_a_forecast_is_above_the_present_load_and_at_most_twice_it(loads: list[float], horizon_s: float) -> None:
    points = tuple(Point(4.0 * number, load) for number, load in enumerate(loads))
    expected = trend.forecast(points, horizon_s)
    if expected is not None:
        assert loads[-1] < expected.in_flight <= 2 * loads[-1]
        assert math.isfinite(expected.growth)


def test_a_ramp_gets_its_pods_before_it_needs_them() -> None:
    ramp = [8 + number for number in range(40)]
    ahead, behind = watched(ramp), watched(ramp, lookahead_s=0.0)
    when_six = [next(n for n, one in enumerate(each) if one.desired >= 6) for each in (ahead, behind)]
    assert when_six[1] - when_six[0] >= 10  # forty seconds of the sixty that a pod takes
    first = next(one for one in ahead if one.decision.reason == "Lookahead")
    assert first.decision.message == "2 → 4, 26 in flight are expected in 60 s, +0.25 each second"


def test_a_fixed_horizon_needs_no_measured_start() -> None:
    ramp = [8 + number for number in range(20)]
    assert watched(ramp, None, lookahead_s=60.0)[-1].desired == watched(ramp)[-1].desired
    assert "Lookahead" not in {one.decision.reason for one in watched(ramp, None)}


def test_a_step_is_answered_once_and_exactly() -> None:
    numbers = [one.desired for one in watched([4] * 10 + [40] * 20)]
    assert sorted(set(numbers)) == [1, 5]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("seed", range(5))
def test_a_constant_load_with_noise_asks_for_nothing_ahead(seed: int) -> None:
    dice = random.Random(seed)
    outcomes = watched([round(dice.gauss(40, 5)) for _ in range(200)])
    assert not [one for one in outcomes if one.decision.reason == "Lookahead"]


def test_a_sum_without_a_pod_is_no_point_of_the_line() -> None:
    outcome = decide(POLICY, fleet(ready(0, 4), SILENT), calm(2), at(0))
    assert outcome.memory.trend == ()
    full = decide(POLICY, fleet(ready(0, 4), ready(0, 2)), outcome.memory, at(1))
    assert full.memory.trend == (Point(1001.0, 6),)
    soon = decide(POLICY, fleet(ready(0, 4), ready(0, 4)), full.memory, at(2))
    assert soon.memory.trend == full.memory.trend
    late = decide(POLICY, fleet(ready(0, 4), ready(0, 4)), soon.memory, at(62))
    assert late.memory.trend == (Point(1062.0, 8),)


def test_without_any_sample_nothing_is_expected() -> None:
    memory = Memory(2, trend=tuple(Point(1000 + point.when_s - 60, point.in_flight) for point in line(10, 0.25)))
    blind = replace(fleet(SILENT, SILENT), cold_start_s=60.0)
    assert decide(POLICY, blind, memory, at(0)).desired == 2
    assert load().in_flight == 0
