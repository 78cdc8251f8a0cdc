from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagefleet_operator.autoscaling.policy import DOWN
from tests.pagefleet_operator.autoscaling.build import DEFAULTS
from tests.pagefleet_operator.autoscaling.closed_loop import World

STORY = replace(DEFAULTS, down=replace(DOWN, window_s=30))


@pytest.mark.parametrize("seed", range(4))
def test_twenty_clients_on_eight_seats_get_three_pods_and_never_a_fourth(seed: int) -> None:
    world = World(STORY, clients=20, service_s=6.0, cold_start_s=15.0, seed=seed)
    world.run(300)
    assert world.numbers() == [3]
    world.stop_load()
    world.run(90)
    after = world.numbers(300)
    assert after[0] == 3
    assert after == sorted(after, reverse=True)
    assert after[-1] == 1
    assert all(number == 3 for when_s, number in world.trail if 300 <= when_s <= 320)


def test_a_start_that_takes_minutes_is_answered_once() -> None:
    world = World(replace(STORY, max_replicas=40), clients=40, service_s=6.0, cold_start_s=280.0, seed=1)
    world.run(280)
    assert world.numbers() == [5, 8]


def test_a_restarted_operator_takes_nothing_down_within_its_window() -> None:
    world = World(STORY, clients=20, service_s=6.0, cold_start_s=15.0, seed=3)
    world.run(120)
    for _ in range(20):
        world.memory = None
        world.run(7)
    world.stop_load()
    for _ in range(5):
        world.memory = None
        world.run(20)
    assert world.numbers() == [3]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    clients=st.integers(1, 60),
    seats=st.sampled_from([1, 2, 4, 8, 16, 32]),
    target=st.sampled_from([None, 1.0, 2.0, 4.0, 16.0]),
    kv_target=st.sampled_from([None, 0.5, 0.75, 0.9]),
    kv_demand_target=st.sampled_from([None, 0.85]),
    in_flight_share=st.sampled_from([None, 0.5, 1.0]),
    service_s=st.sampled_from([1.0, 4.0, 15.0]),
    cold_start_s=st.sampled_from([0.0, 10.0, 60.0]),
    seed=st.integers(0, 1000),
)
def test_under_constant_load_a_number_that_was_too_small_does_not_come_back(
    clients: int,
    seats: int,
    target: float | None,
    kv_target: float | None,
    kv_demand_target: float | None,
    in_flight_share: float | None,
    service_s: float,
    cold_start_s: float,
    seed: int,
) -> None:
    policy = replace(
        STORY,
        max_replicas=12,
        max_num_seqs=seats,
        waiting_target=target,
        kv_target=kv_target,
        kv_demand_target=kv_demand_target,
        in_flight_target=None if in_flight_share is None else in_flight_share * seats,
    )
    world = World(policy, clients, service_s, cold_start_s, seed)
    world.run(300)
    numbers = world.numbers(120)
    for index, (before, after) in enumerate(pairwise(numbers)):
        if after > before:
            assert min(numbers[index + 1 :]) > before, numbers
