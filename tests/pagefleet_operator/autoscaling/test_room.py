"""A full cluster is asked for nothing more; who is important gets the next room; spare pods stand beside the load."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_api.scaling import Mode
from pagefleet_operator.autoscaling import Fleet, decide
from pagefleet_operator.facts.observed import DeploymentView, Evidence, Observed, Pod, Room
from pagefleet_operator.facts.problems import PodProblem
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, START, UNPLACED, at, calm, fleet, ready

HOMELESS = UNPLACED._replace(placed=False)
WORDS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def crowded(*pods: object, **more: object) -> Fleet:
    made = fleet(*pods)  # type: ignore[arg-type]
    return replace(made, **{"unplaced_words": WORDS, "resource": "nvidia.com/gpu", **more})  # type: ignore[arg-type]


def test_a_full_cluster_is_asked_for_nothing_more_and_it_is_said() -> None:
    outcome = decide(DEFAULTS, crowded(ready(24, 8), ready(), HOMELESS), calm(3), at(0))
    assert outcome.desired == 3
    assert outcome.decision.clamps == (f"GPUCapacity: 6 → 3, 1 of 3 find no place: {WORDS}",)
    assert (outcome.limited.status, outcome.limited.reason) == (True, Reason.GPU_CAPACITY)
    assert WORDS in outcome.limited.message


def test_a_group_finds_no_place_when_one_of_its_pods_finds_none() -> None:
    waits = PodProblem(Reason.UNSCHEDULABLE, WORDS, since=START - timedelta(minutes=5))
    leaders = tuple(Pod(name=f"g{place}", uid=f"{place}", group=place, ready=place == 0) for place in range(2))
    workers = tuple(
        Pod(name=f"g{place}-1", uid=f"{place}-1", group=place, problem=waits if place else None) for place in range(2)
    )
    seen = Observed(DeploymentView(name="b", replicas=2), leaders, workers=workers, grouped=True)
    found = Fleet.of(seen, at(0))
    assert [pod.placed for pod in found.pods] == [True, False]
    assert (found.unplaced, found.unplaced_words) == (1, WORDS)


def test_pods_of_the_earlier_workload_that_drain_are_not_taken_off_the_number_of_its_successor() -> None:
    earlier = tuple(Pod(name=f"d{place}", uid=f"d{place}", serving=False) for place in range(2))
    seen = Observed(DeploymentView(name="b", replicas=2, has_predecessor=True), earlier, grouped=True)
    assert Fleet.of(seen, at(0), reported=2).current == 2
    assert Fleet.of(replace(seen, grouped=False), at(0), reported=2).current == 0


def test_growth_goes_on_when_there_is_room() -> None:
    full = decide(DEFAULTS, crowded(ready(24, 8), ready(), HOMELESS), calm(3), at(0))
    placed = decide(DEFAULTS, crowded(ready(24, 8), ready(), UNPLACED), full.memory, at(2))
    assert (placed.desired, placed.limited.reason) == (6, Reason.WITHIN_RANGE)


def test_it_is_said_as_long_as_a_pod_waits_although_nothing_more_is_needed() -> None:
    outcome = decide(DEFAULTS, crowded(ready(10, 8), ready(0, 8), HOMELESS), calm(3), at(0))
    assert (outcome.desired, outcome.limited.reason) == (3, Reason.GPU_CAPACITY)
    no_gpus = crowded(ready(10, 8), ready(0, 8), HOMELESS, resource=None)
    assert decide(DEFAULTS, no_gpus, calm(3), at(0)).limited.reason is Reason.CLUSTER_CAPACITY


def test_a_full_cluster_keeps_nobody_from_the_way_down_or_from_the_minimum() -> None:
    policy = replace(DEFAULTS, min_replicas=4)
    assert decide(policy, crowded(ready(), HOMELESS), calm(2), at(0)).desired == 4
    assert decide(DEFAULTS, crowded(ready(), HOMELESS), calm(2), at(0)).desired == 1


def test_the_lesser_service_gives_its_waiting_pods_up_and_keeps_those_that_serve() -> None:
    two = crowded(ready(24, 8), ready(0, 8), HOMELESS, HOMELESS, rival="team/chat")
    outcome = decide(DEFAULTS, two, calm(4), at(0))
    assert (outcome.desired, outcome.limited.reason) == (2, Reason.YIELDS_ROOM)
    assert outcome.decision.clamps[-1] == (
        "YieldsRoom: 4 → 2, team/chat has a higher priority and finds no place for its pods"
    )
    again = decide(DEFAULTS, crowded(ready(24, 8), ready(0, 8), rival="team/chat"), outcome.memory, at(2))
    assert again.desired == 2
    assert decide(DEFAULTS, crowded(ready(24, 8), ready(0, 8)), again.memory, at(20)).desired == 6


def test_in_a_roll_out_the_lesser_service_only_stops_growing() -> None:
    rolling = replace(crowded(ready(24, 8), HOMELESS, rival="team/chat"), rollout_in_progress=True)
    assert decide(DEFAULTS, rolling, calm(2), at(0)).desired == 2


def test_a_recommendation_takes_no_room() -> None:
    policy = replace(DEFAULTS, mode=Mode.RECOMMEND)
    assert decide(policy, crowded(ready(24, 8), HOMELESS, rival="x"), calm(2), at(0)).desired == 6


@pytest.mark.parametrize(
    ("reason", "since_s", "placed"),
    [
        (Reason.UNSCHEDULABLE, -9, True),
        (Reason.UNSCHEDULABLE, -10, False),
        (Reason.STARTING, -900, True),
        (Reason.UNSCHEDULABLE, None, True),
    ],
)
def test_a_pod_has_no_place_once_the_scheduler_looked_for_a_while(
    reason: Reason, since_s: int | None, placed: bool
) -> None:
    since = None if since_s is None else START + timedelta(seconds=since_s)
    waiting = Pod(name="w", uid="w", problem=PodProblem(reason, WORDS, since), extended={"nvidia.com/gpu": 1})
    serving = Pod(name="s", uid="s", ready=True)
    found = Fleet.of(Observed(DeploymentView(name="b", replicas=2), (waiting, serving)), at(0), rival="r")
    assert (found.unplaced, found.unplaced_words) == ((0, "") if placed else (1, WORDS))
    assert (found.resource, found.rival) == ("nvidia.com/gpu", "r")


def test_the_room_on_the_nodes_is_said_where_it_is_known() -> None:
    problem = PodProblem(Reason.UNSCHEDULABLE, WORDS, START)
    pods = (Pod(name="w", uid="w", problem=problem, extended={"nvidia.com/gpu": 4}),)
    room = Room(resource="nvidia.com/gpu", free_by_node={"a": 1, "b": 2}, allocatable=16)
    found = Fleet.of(Observed(DeploymentView(name="b"), pods, evidence=Evidence(room=room)), at(20))
    assert found.unplaced_words == f"{WORDS} (3 of 16 nvidia.com/gpu free)"


def test_spare_pods_stand_beside_those_that_the_load_needs() -> None:
    policy = replace(DEFAULTS, spare_replicas=2)
    first = decide(policy, fleet(ready()), calm(1), at(0))
    assert (first.desired, first.decision.reason) == (3, "SpareReplicas")
    idle = decide(policy, fleet(ready(), ready(), ready()), first.memory, at(2))
    assert (idle.desired, idle.decision.reason) == (3, "Steady")
    busy = decide(policy, fleet(ready(4, 8), ready(4, 8), ready(0, 8)), idle.memory, at(30))
    assert (busy.desired, busy.decision.reason) == (4, "WaitingRequests")
    assert busy.decision.clamps == ("SpareReplicas: 2 → 4, spareReplicas is 2",)


def test_spare_pods_come_on_top_of_what_a_metric_asks_for() -> None:
    policy = replace(DEFAULTS, spare_replicas=1)
    outcome = decide(policy, fleet(ready(12, 8), ready()), calm(2), at(0))
    assert (outcome.desired, outcome.decision.reason) == (4, "WaitingRequests")
    only_spare = replace(policy, waiting_target=None, kv_target=None)
    assert decide(only_spare, fleet(ready()), calm(1), at(0)).decision.reason == "SpareReplicas"
    assert decide(policy, fleet(UNPLACED), calm(3), at(0)).desired == 3
