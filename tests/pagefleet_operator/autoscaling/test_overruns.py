"""A number that proved too small does not come back while the load is like that."""

import functools
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from pagefleet_api.step_costs import StepCosts, default
from pagefleet_cli.simulation import Balancing, EngineModel, FleetModel, Request, Trace, timeline
from pagefleet_operator.autoscaling import PodLoad, Policy, decide
from pagefleet_operator.autoscaling.overruns import PATIENT_S, PROOF_S, SETTLING_S
from pagefleet_operator.autoscaling.policy import DOWN
from pagefleet_operator.autoscaling.values import Descent, Doubt, Memory, Overrun
from tests.pagefleet_operator.autoscaling.build import SILENT, at, fleet, ready

PARTS = ("fixed_s", "weights_s", "token_s")
OF_CONTEXT = ("context_token_s", "pair_s")


def slower(times: float, *parts: str, **more: int) -> StepCosts:
    return default().model_copy(update={**{name: times * getattr(default(), name) for name in parts}, **more})


SLOW = slower(10, *PARTS)
POLICY = Policy(
    min_replicas=1, max_replicas=8, waiting_target=4, kv_target=0.75, max_num_seqs=64, down=replace(DOWN, window_s=60)
)


@pytest.mark.parametrize("per_s", [4.0, 5.0])
def test_a_load_that_fewer_pods_cannot_compute_ends_in_one_number(per_s: float) -> None:
    """In flight on many pods it would fit the seats of fewer, which compute it more slowly and queue."""
    engine = EngineModel(costs=SLOW, kv_tokens=SLOW.num_kv_blocks * 16, max_num_seqs=64)
    load = Trace(tuple(Request(place / per_s, 900, 250) for place in range(round(1500 * per_s))))
    seen = timeline(POLICY, load, FleetModel(engine=engine, start_p50_s=40, start_p95_s=40))
    late = [moment.desired for moment in seen if moment.t > 700]
    assert len(late) <= 1, [(moment.t, moment.desired) for moment in seen]
    assert seen[-1].desired < 8, "and that is not simply the most"


def test_ways_down_that_follow_closely_are_one_and_a_queue_soon_after_it_is_their_proof() -> None:
    policy = replace(POLICY, max_num_seqs=8, down=replace(DOWN, window_s=0))
    down = decide(policy, fleet(*[ready(running=2)] * 6), Memory(6), at(0))
    assert (down.desired, down.memory.descent) == (2, Descent(6, 12, at(0).monotonic_s))
    again = decide(policy, fleet(*[ready(running=3)] * 2), down.memory, at(10))
    assert (again.desired, again.memory.descent) == (1, Descent(6, 12, at(10).monotonic_s))
    queued = decide(policy, fleet(ready(running=8, waiting=30)), again.memory, at(20))
    assert queued.memory.overrun is not None
    assert queued.memory.overrun[:2] == (2, 12), "half of the way is tried next, at the load before it"
    late = decide(policy, fleet(ready(running=8, waiting=30)), again.memory, at(400))
    assert late.memory.overrun is not None
    assert late.memory.overrun[:2] == (1, 38), "a queue much later has other causes"


_policy = functools.partial(Policy, min_replicas=1, max_replicas=8, max_num_seqs=64)
TARGETS = [
    pytest.param(_policy(waiting_target=4, kv_target=0.75), 1, id="defaults"),
    pytest.param(_policy(kv_target=0.75), 0, id="KVCacheUsage"),
    pytest.param(_policy(kv_demand_target=0.85), 1, id="KVCacheDemand"),
    pytest.param(_policy(in_flight_target=16), 5, id="InFlightRequests"),
]


@pytest.mark.parametrize(("policy", "seed"), TARGETS)
def test_requests_at_random_times_on_random_pods_outgrow_a_number_twice_an_hour_at_most(
    policy: Policy, seed: int
) -> None:
    """Pods that are fewer are slower, so that more is in flight and in KV on them than there was on many."""
    dice, costs = random.Random(seed), slower(40, *PARTS, *OF_CONTEXT, num_kv_blocks=4000)
    times = [0.0]
    while times[-1] < PROOF_S:
        times.append(times[-1] + dice.expovariate(0.5))
    load = Trace(tuple(Request(when_s, 900, round(250 * dice.uniform(0.5, 1.5))) for when_s in times))
    engine = EngineModel(costs=costs, kv_tokens=costs.num_kv_blocks * 16, max_num_seqs=64)
    model = FleetModel(engine=engine, start_p50_s=60, start_p95_s=60, balancing=Balancing.RANDOM)
    numbers = [moment.desired for moment in timeline(policy, load, model, dice.random) if moment.t < PROOF_S]
    outgrown = [before for before, after in pairwise(numbers) if after > before]
    assert max(outgrown.count(number) for number in outgrown) <= 2, numbers


SEATS = replace(POLICY, waiting_target=None, in_flight_target=4, down=replace(DOWN, window_s=PATIENT_S))


def went_up_again(after_s: float = 10) -> Memory:
    """Three pods became one, and two again."""
    down = decide(SEATS, fleet(*[ready(running=1)] * 3), Memory(3), at(0)).memory
    assert down.descent == Descent(3, 3, at(0).monotonic_s)
    up = decide(SEATS, fleet(ready(running=7)), down, at(after_s)).memory
    assert (down.desired, up.desired) == (1, 2)
    return up


def test_a_load_that_is_gone_once_there_are_more_pods_was_the_way_downs_own() -> None:
    up = went_up_again()
    assert up.doubt == Doubt(1, 3, None, SEATS)
    starting = decide(SEATS, fleet(ready(running=7), current=2), up, at(12)).memory
    assert starting.doubt == Doubt(1, 3, None, SEATS), "the new pod is not ready"
    both = decide(SEATS, fleet(ready(running=5), ready(running=2)), starting, at(20)).memory
    assert both.doubt == Doubt(1, 3, at(20).monotonic_s, SEATS)
    unsaid = decide(SEATS, fleet(ready(running=3), SILENT), both, at(22)).memory
    assert unsaid.doubt == both.doubt, "a pod without a sample may have the rest of the load"
    settled = decide(SEATS, fleet(ready(running=2), ready(running=1)), both, at(24))
    assert settled.memory.doubt is None
    assert settled.memory.overrun == (1, 3, at(24).monotonic_s, SEATS)
    again = decide(SEATS, fleet(ready(running=2), ready(running=1)), settled.memory, at(90))
    assert again.desired == 2
    less = decide(SEATS, fleet(ready(running=2), ready()), settled.memory, at(90))
    assert less.desired == 1, "of a lesser load nothing is known"
    later = decide(SEATS, fleet(ready(running=2), ready(running=1)), settled.memory, at(24 + PROOF_S))
    assert later.desired == 1


def test_a_load_that_is_gone_before_there_are_more_pods_proves_nothing() -> None:
    gone = decide(SEATS, fleet(ready(running=3), current=2), went_up_again(), at(80))
    assert (gone.desired, gone.memory.doubt) == (1, None)


def test_a_load_that_stops_once_there_are_more_pods_proves_nothing() -> None:
    both = decide(SEATS, fleet(ready(running=5), ready(running=2)), went_up_again(), at(20)).memory
    stopped = decide(SEATS, fleet(ready(), ready()), both, at(24)).memory
    assert (stopped.doubt, stopped.overrun) == (both.doubt, None)
    gone = decide(SEATS, fleet(ready(), ready()), stopped, at(90)).memory
    assert (gone.desired, gone.doubt, gone.overrun) == (1, None, None), "another load of that size tells nothing of it"


def test_a_doubt_ends_with_the_policy_that_it_was_about() -> None:
    both = decide(SEATS, fleet(ready(running=5), ready(running=2)), went_up_again(), at(20)).memory
    roomy = replace(SEATS, in_flight_target=20)
    wished = decide(roomy, fleet(ready(running=2), ready(running=1)), both, at(24)).memory
    assert (wished.doubt, wished.overrun) == (None, None)
    assert decide(roomy, fleet(ready(running=2), ready(running=1)), wished, at(90)).desired == 1


def test_a_bound_that_raises_the_number_says_nothing_of_the_load() -> None:
    down = decide(SEATS, fleet(*[ready(running=1)] * 3), Memory(3), at(0)).memory
    bound = decide(replace(SEATS, min_replicas=2), fleet(ready(running=3)), down, at(10))
    assert (bound.desired, bound.memory.doubt) == (2, None)


def test_a_load_that_stays_is_more_load() -> None:
    both = decide(SEATS, fleet(ready(running=5), ready(running=2)), went_up_again(), at(20)).memory
    stayed = decide(SEATS, fleet(ready(running=5), ready(running=2)), both, at(20 + SETTLING_S)).memory
    assert (stayed.doubt, stayed.overrun) == (None, None)


def test_who_has_the_number_follow_each_swing_is_obeyed() -> None:
    eager = replace(SEATS, down=replace(DOWN, window_s=PATIENT_S - 1))
    down = decide(eager, fleet(*[ready(running=1)] * 3), Memory(3), at(0)).memory
    assert decide(eager, fleet(ready(running=7)), down, at(10)).memory.doubt is None


def test_a_way_up_long_after_a_way_down_or_after_another_way_up_leaves_nothing_open() -> None:
    assert went_up_again(SETTLING_S).doubt is None
    once = replace(went_up_again(), doubt=None)
    more = decide(SEATS, fleet(ready(running=7), ready(running=7)), once, at(30)).memory
    assert (more.desired, more.doubt) == (4, None)


_few_seats = functools.partial(Policy, min_replicas=1, max_replicas=8, max_num_seqs=8)
BURSTS = [
    pytest.param(_few_seats(waiting_target=4, kv_target=0.75), ready(waiting=20, running=8, kv=0.5), id="a queue"),
    pytest.param(_few_seats(waiting_target=4, kv_target=0.75), ready(running=8, kv=0.99), id="KV"),
    pytest.param(_few_seats(in_flight_target=4), ready(running=8), id="in flight"),
]


@pytest.mark.parametrize("calm", [0, 1, 2])
@pytest.mark.parametrize(("policy", "burst"), BURSTS)
def test_a_burst_after_a_way_down_of_next_to_nothing_keeps_no_pod_once_it_is_over(
    policy: Policy, burst: PodLoad, calm: int
) -> None:
    memory, numbers = Memory(8), []
    for seconds in range(0, 1000, 10):
        idle = (ready(running=calm), *[ready()] * (memory.desired - 1))
        pods = [burst] * memory.desired if 20 <= seconds < 60 else idle
        memory = decide(policy, fleet(*pods), memory, at(seconds)).memory
        numbers.append(memory.desired)
    assert numbers[0] == 1 < max(numbers), "down, and up again"
    assert numbers[-1] == 1, (numbers, memory.overrun)
    assert memory.doubt is None


def test_a_queue_after_a_way_down_of_nothing_in_flight_is_proof_of_its_own_load() -> None:
    policy = _few_seats(waiting_target=4, kv_target=0.75)
    down = decide(policy, fleet(*[ready()] * 6), Memory(6), at(0)).memory
    queued = decide(policy, fleet(ready(waiting=20, running=8)), down, at(20)).memory
    assert queued.overrun == (1, 28, at(20).monotonic_s, policy)
    unknown = replace(queued, overrun=Overrun(1, 0, at(20).monotonic_s, policy))
    assert decide(policy, fleet(*[ready()] * 6), unknown, at(500)).desired == 1, "no load is like none"
