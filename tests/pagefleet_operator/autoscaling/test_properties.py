import math
from dataclasses import replace
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_api.behavior import RateUnit, SelectPolicy
from pagefleet_api.load import Load
from pagefleet_api.reasons import Reason
from pagefleet_api.scaling import Mode
from pagefleet_operator.autoscaling import Fleet, Memory, PodLoad, Policy, decide
from pagefleet_operator.autoscaling.policy import DOWN, Rate, Rules
from pagefleet_operator.autoscaling.schedules import Schedule
from pagefleet_operator.autoscaling.values import Change, Descent, Mark, Overrun, Point
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.observed import Now
from tests.pagefleet_operator.autoscaling.build import BLOCKS, DEFAULTS, SILENT, at, calm, load

NIGHT = Schedule("night", ZoneInfo("UTC"), frozenset(range(7)), 0, 360, 3, 4)
rates = st.lists(
    st.builds(Rate, unit=st.sampled_from(RateUnit), value=st.integers(1, 200), period_s=st.sampled_from([1.0, 15.0])),
    min_size=1,
    max_size=3,
).map(tuple)
FEW = settings(max_examples=40, deadline=None)
policies = st.builds(
    lambda least, room, **rest: Policy(min_replicas=least, max_replicas=least + room, **rest),
    least=st.integers(1, 5),
    room=st.integers(0, 20),
    waiting_target=st.none() | st.floats(0.1, 100),
    kv_target=st.none() | st.floats(0.01, 1.0),
    in_flight_target=st.none() | st.floats(0.1, 100),
    max_num_seqs=st.integers(1, 64),
    max_queued_requests=st.integers(0, 1000),
    up=st.builds(Rules, window_s=st.sampled_from([0.0, 30.0]), rates=rates, select=st.sampled_from(SelectPolicy)),
    down=st.builds(
        Rules, window_s=st.sampled_from([0.0, 30.0, 300.0]), rates=rates, select=st.sampled_from(SelectPolicy)
    ),
    min_coverage=st.sampled_from([0.0, 0.5, 1.0]),
    mode=st.sampled_from(Mode),
    fallback_replicas=st.none() | st.integers(1, 30),
    lookahead_s=st.none() | st.floats(0, 600),
    spare_replicas=st.integers(0, 3),
    schedules=st.just(()) | st.just((NIGHT,)),
    ttft_target_s=st.none() | st.floats(0.01, 10),
    kv_demand_target=st.none() | st.floats(0.01, 2),
)
loads = st.builds(load, waiting=st.integers(0, 2000), running=st.integers(0, 100), kv=st.floats(0, 2))
light_loads = st.builds(load, running=st.integers(0, 2), kv=st.floats(0, 0.1))
"""Which fewer pods would hold."""
pods = st.builds(
    PodLoad,
    name=st.just("pod"),
    ready=st.booleans(),
    may_hold=st.booleans(),
    load=st.none() | loads,
    age_s=st.none() | st.floats(0, 60),
    placed=st.booleans(),
    ttft=st.none() | st.just(Histogram((0.5, math.inf), (3, 40), 60.0)),
)
fleets = st.builds(
    Fleet,
    current=st.none() | st.integers(0, 30),
    pods=st.lists(pods, max_size=8).map(tuple),
    rollout_in_progress=st.booleans(),
    rival=st.none() | st.just("another"),
    cold_start_s=st.none() | st.floats(0, 600),
)
memories = st.none() | st.builds(
    Memory,
    desired=st.integers(0, 30),
    answers=st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 100)), max_size=5).map(
        lambda rows: tuple(sorted(rows))
    ),
    trend=st.lists(st.tuples(st.floats(900, 1000), st.floats(0, 100)), max_size=12).map(
        lambda rows: tuple(Point(*row) for row in sorted(rows))
    ),
    changes=st.lists(st.tuples(st.floats(900, 1000), st.integers(-9, 9)), max_size=5).map(
        lambda rows: tuple(Change(*row) for row in sorted(rows))
    ),
    marks=st.just(()) | st.just((Mark(950, (("pod", Histogram((0.5, math.inf), (1, 2), 2.0)),)),)),
    blind_since_s=st.none() | st.floats(0, 1000),
    descent=st.none() | st.builds(Descent, st.integers(0, 30), st.floats(0, 500), st.floats(0, 1000)),
    overrun=st.none()
    | st.builds(Overrun, st.integers(0, 30), st.floats(0, 500), st.floats(0, 1000), st.just(DEFAULTS)),
)


@FEW
@given(policies, fleets, memories)
def test_the_number_is_never_outside_the_bounds(policy: Policy, fleet: Fleet, memory: Memory | None) -> None:
    outcome = decide(policy, fleet, memory, at(0))
    assert policy.min_replicas <= outcome.desired <= policy.max_replicas
    assert outcome.memory.desired == outcome.desired


@FEW
@given(policies, memories, st.lists(st.sampled_from([SILENT, PodLoad("old", True, True, load(), 31.0)]), max_size=8))
def test_without_a_fresh_sample_the_number_stays(policy: Policy, memory: Memory | None, silent: list[PodLoad]) -> None:
    policy = replace(policy, schedules=(), fallback_replicas=None)
    before = len(silent) if memory is None else memory.desired
    calm_memory = None if memory is None else calm(before)
    outcome = decide(policy, Fleet(before, tuple(silent)), calm_memory, at(0))
    assert outcome.desired == min(max(before, policy.min_replicas), policy.max_replicas)
    assert outcome.active.reason in {Reason.METRICS_STALE, Reason.WAITING_FOR_METRICS}


@FEW
@given(policies, st.lists(light_loads, max_size=4), st.integers(0, 8))
def test_nothing_goes_down_below_the_coverage(policy: Policy, answered: list[Load], silent: int) -> None:
    answering = tuple(PodLoad("pod", True, True, one, 1.0) for one in answered)
    fleet = Fleet(len(answered) + silent, (*answering, *[SILENT] * silent))
    for each in (policy, replace(DEFAULTS, max_replicas=12)):
        each = replace(each, min_coverage=0.5, down=replace(DOWN, window_s=0), schedules=())
        if len(answered) < silent:
            assert decide(each, fleet, calm(len(fleet.pods)), at(0)).desired >= min(len(fleet.pods), each.max_replicas)


@FEW
@given(
    policies,
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.floats(0, 0.5)), min_size=1, max_size=6),
    st.tuples(st.integers(0, 30), st.integers(0, 8), st.floats(0, 0.5)),
)
def test_more_load_never_gives_a_smaller_number(
    policy: Policy, rows: list[tuple[int, int, float]], more: tuple[int, int, float]
) -> None:
    policy = replace(policy, max_queued_requests=1000)

    def answer(first: tuple[int, int, float]) -> int:
        fleet = tuple(PodLoad("pod", True, True, load(*row), 1.0) for row in (first, *rows[1:]))
        return decide(policy, Fleet(len(rows), fleet), calm(len(rows)), at(0)).desired

    waiting, running, kv = rows[0]
    assert answer(rows[0]) <= answer((waiting + more[0], running + more[1], kv + more[2]))


LOADS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.floats(0, 0.5)), min_size=1, max_size=6)


@FEW
@given(policies, LOADS, st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_a_constant_load_moves_the_number_in_one_direction_only(
    policy: Policy, rows: list[tuple[int, int, float]], waits_s: list[float]
) -> None:
    """The same sums over as many pods as the answer asks for: they spread, and nothing swings back."""
    policy = replace(policy, max_queued_requests=100_000, schedules=(), ttft_target_s=None, waiting_target=None)
    sums = [sum(row[0] for row in rows), sum(row[1] for row in rows), round(sum(row[2] for row in rows) * BLOCKS)]
    now_s, memory, numbers = 0.0, calm(len(rows)), [len(rows)]
    for wait_s in waits_s:
        pods = max(numbers[-1], 1)
        even = [each // pods for each in sums]  # whole requests and blocks: the sums must not change by rounding
        rest = [each - part * (pods - 1) for each, part in zip(sums, even, strict=True)]
        shares = [
            load(waiting, running, min(blocks / BLOCKS, 1)) for waiting, running, blocks in (rest, *[even] * (pods - 1))
        ]
        fleet = tuple(PodLoad("pod", True, True, one, 1.0) for one in shares)
        outcome = decide(policy, Fleet(pods, fleet), memory, at(now_s))
        memory, now_s = outcome.memory, now_s + wait_s
        numbers.append(outcome.desired)
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True))


@FEW
@given(policies, LOADS, st.integers(1, 30))
def test_a_step_gets_its_answer_as_fast_as_the_rate_allows(
    policy: Policy, rows: list[tuple[int, int, float]], value: int
) -> None:
    up = Rules(window_s=0, rates=(Rate(RateUnit.PODS, value, 10.0),), tolerance=0.0)
    exact = replace(DOWN, tolerance=0.0)
    policy = replace(policy, max_queued_requests=100_000, up=up, down=exact, schedules=(), lookahead_s=0.0)
    fleet = Fleet(len(rows), tuple(PodLoad("pod", True, True, load(*row), 1.0) for row in rows))
    free = replace(policy, up=replace(up, rates=(Rate(RateUnit.PODS, 10_000, 10.0),)))
    begin = max(len(rows), policy.min_replicas)
    answer = decide(free, fleet, calm(begin), at(0)).desired
    memory = calm(begin)
    if answer > begin <= policy.max_replicas:
        periods = -(-(answer - begin) // value)
        for period in range(periods):
            memory = decide(policy, fleet, memory, at(10.0 * period)).memory
        assert memory.desired >= answer


@FEW
@given(policies, LOADS, st.floats(-1e6, 1e6), memories)
def test_a_jump_of_the_wall_clock_moves_nothing(
    policy: Policy, rows: list[tuple[int, int, float]], jump_s: float, memory: Memory | None
) -> None:
    policy = replace(policy, schedules=())
    fleet = Fleet(len(rows), tuple(PodLoad("pod", True, True, load(*row), 1.0) for row in rows))
    jumped = Now(at(jump_s).wall, at(0).monotonic_s)
    before, after = (decide(policy, fleet, memory, now) for now in (at(0), jumped))
    assert (before.desired, before.memory) == (after.desired, after.memory)


@FEW
@given(policies, LOADS, st.lists(st.floats(1, 60), min_size=1, max_size=8))
def test_restarts_of_the_operator_take_nothing_down_within_a_window(
    policy: Policy, rows: list[tuple[int, int, float]], waits_s: list[float]
) -> None:
    policy = replace(policy, down=replace(DOWN, window_s=61), schedules=(), max_replicas=40)
    fleet = Fleet(len(rows), tuple(PodLoad("pod", True, True, load(*row), 1.0) for row in rows))
    now_s, least = 0.0, len(rows)
    for wait_s in waits_s:
        first = decide(policy, fleet, None, at(now_s))
        second = decide(policy, fleet, first.memory, at(now_s + wait_s))
        least, now_s = min(least, first.desired, second.desired), now_s + wait_s
    assert least == len(rows)
