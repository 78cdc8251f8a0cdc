"""Pods of one node give way to groups, and groups to them, as the pods of one template do to another's."""

from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.evidence import Evidence, Room
from pagefleet_operator.facts.knowledge import Knowledge
from pagefleet_operator.facts.observed import Observed, Pod
from pagefleet_operator.plan.handover import Handover, hand_over
from pagefleet_operator.plan.rollout import RollingUpdate
from tests.pagefleet_operator.plan.build import pod

GPU = "nvidia.com/gpu"
BESIDE, IN_PLACE = RollingUpdate(1, 0), RollingUpdate(0, 1)


def service(*, pipeline: int = 2, tensor: int = 1, gpus: int | None = None, **rollout: Any) -> InferenceService:
    sizes = {"pipeline": pipeline, "tensor": tensor}
    engine = {"runtime": "custom", "image": "v", "parallelism": sizes, "custom": {"healthPath": "/"}}
    count = {} if gpus is None else {"count": gpus}
    spec = {"model": {"uri": "file:///m"}, "engine": engine, "rollout": rollout, "resources": {"gpu": count}}
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec})


def single(name: str, *, gpus: int = 1, **changes: Any) -> Pod:
    return pod(name, **{"extended": {GPU: gpus}, **changes})


def leader(place: int, *, gpus: int = 1, **changes: Any) -> Pod:
    return pod(f"g{place}", group=place, extended={GPU: gpus}, **{"node": "a", **changes})


def singles(number: int) -> tuple[Pod, ...]:
    return tuple(single(f"p{each}") for each in range(number))


def step(
    *pods: Pod,
    wanted: int,
    rolling: RollingUpdate,
    before: int,
    after: int,
    of: InferenceService | None = None,
    placeable: bool | None = None,
    room: Room | None = None,
) -> Handover:
    workers = tuple(pod(f"{each.name}-1", group=each.group, extended=each.extended) for each in pods if each.group)
    workers += tuple(pod("g0-1", group=0, extended=each.extended) for each in pods if each.group == 0)
    seen = Observed(pods=pods, workers=workers, knowledge=Knowledge(placeable=placeable), evidence=Evidence(room=room))
    return hand_over(of or service(), seen, wanted, rolling, before=before, after=after)


def test_a_group_comes_beside_the_pods_and_one_goes_for_each_that_serves() -> None:
    three = singles(3)
    assert step(*three, wanted=3, rolling=BESIDE, before=3, after=0) == (1, 3)
    coming = leader(0, ready=False)
    assert step(*three, coming, wanted=3, rolling=BESIDE, before=3, after=1) == (1, 3)
    assert step(*three, leader(0), wanted=3, rolling=BESIDE, before=3, after=1) == (2, 2)
    assert step(*three[:2], leader(0), wanted=3, rolling=BESIDE, before=2, after=2) == (2, 2)
    two = (leader(0), leader(1))
    assert step(*three[:2], *two, wanted=3, rolling=BESIDE, before=2, after=2) == (3, 1)
    assert step(three[0], *two, leader(2), wanted=3, rolling=BESIDE, before=1, after=3) == (3, 0)


def test_pods_that_serve_stay_where_none_may_be_missing() -> None:
    never = service(maxUnavailable=0)
    coming = leader(0, ready=False)
    assert step(*singles(3), coming, wanted=3, rolling=BESIDE, before=3, after=1, of=never) == (1, 3)


@pytest.mark.parametrize(
    ("asked", "stay"),
    [
        (service(), 2),
        (service(tensor=2), 0),
        (service(maxUnavailable=1), 3),
        (service(maxUnavailable="75%"), 1),
        (service(maxSurge=1), 2),
    ],
)
def test_without_room_as_many_go_as_a_group_needs_the_room_of(asked: InferenceService, stay: int) -> None:
    """Of one GPU each, for a group of two or of four; but no more than is written."""
    given = asked.spec.rollout.max_unavailable
    rolling = RollingUpdate(0, 1) if given == "Auto" else RollingUpdate(0, given if "%" in given else int(given))
    rolling = rolling._replace(max_surge=1) if asked.spec.rollout.max_surge == "1" else rolling
    coming = leader(0, ready=False)
    found = step(*singles(4), coming, wanted=4, rolling=rolling, before=4, after=1, of=asked)
    assert found.predecessor == stay


def test_one_pod_serves_until_a_group_has_found_a_place() -> None:
    large, unplaced = service(tensor=8), leader(0, gpus=8, ready=False, node=None)
    of: dict[str, Any] = {"wanted": 12, "rolling": IN_PLACE, "before": 12, "after": 1, "of": large}
    assert step(*singles(12), unplaced, **of) == (1, 1)
    assert step(*singles(12), replace(unplaced, node="a"), **of) == (1, 0)
    assert step(single("p"), unplaced, wanted=1, rolling=IN_PLACE, before=1, after=1, of=large) == (1, 0)


@pytest.mark.parametrize("placeable", [True, None])
def test_pods_stay_for_groups_that_no_node_could_take(placeable: bool | None) -> None:
    large, unplaced = service(tensor=8), leader(0, gpus=8, ready=False, node=None)
    of: dict[str, Any] = {"wanted": 12, "rolling": IN_PLACE, "before": 12, "of": large}
    assert step(*singles(12), unplaced, **of, after=1, placeable=False) == (1, 12)
    assert step(*singles(12), unplaced, **of, after=1, placeable=placeable) == (1, 1)
    assert step(*singles(12), **of, after=0, placeable=False) == (1, 12), "one waits, and tells why"
    alone: dict[str, Any] = {"wanted": 1, "rolling": IN_PLACE, "before": 1, "of": large, "after": 1}
    assert step(single("p"), unplaced, **alone, placeable=False) == (1, 1)
    fewer: dict[str, Any] = {**of, "wanted": 4, "after": 1}
    assert step(*singles(12), unplaced, **fewer, placeable=False) == (1, 4)


@pytest.mark.parametrize(
    ("room", "stay"),
    [
        (Room(resource=GPU, allocatable=15), 12),
        (Room(resource=GPU, allocatable=16), 1),
        (Room(resource="other.com/gpu", allocatable=0), 1),
    ],
)
def test_pods_stay_for_groups_that_ask_for_more_gpus_than_all_nodes_have(room: Room, stay: int) -> None:
    """Of two pods with eight each."""
    large, unplaced = service(tensor=8), leader(0, gpus=8, ready=False, node=None)
    found = step(*singles(12), unplaced, wanted=12, rolling=IN_PLACE, before=12, after=1, of=large, room=room)
    assert found == (1, stay)


def test_what_a_user_lets_be_missing_may_be_missing_for_groups_that_no_node_could_take() -> None:
    asked = service(tensor=8, maxUnavailable=2)
    unplaced = leader(0, gpus=8, ready=False, node=None)
    found = step(
        *singles(12), unplaced, wanted=12, rolling=RollingUpdate(0, 2), before=12, after=1, of=asked, placeable=False
    )
    assert found == (1, 10)


def test_where_groups_wait_for_room_one_is_begun_after_the_other() -> None:
    coming = leader(0, ready=False)
    assert step(*singles(4), coming, wanted=4, rolling=IN_PLACE, before=4, after=1) == (1, 2)
    assert step(*singles(4), leader(0), wanted=6, rolling=IN_PLACE, before=4, after=1) == (2, 2)
    further = (leader(0), leader(1, ready=False))
    assert step(*singles(2), *further, wanted=6, rolling=IN_PLACE, before=2, after=2) == (2, 2)
    further = (leader(0), leader(1))
    assert step(*singles(2), *further, wanted=6, rolling=IN_PLACE, before=2, after=2) == (3, 0)
    assert step(leader(0), leader(1), wanted=4, rolling=IN_PLACE, before=0, after=2) == (3, 0)


def test_what_was_begun_stays_and_a_lower_number_counts_at_once() -> None:
    coming = (leader(0, ready=False), leader(1, ready=False))
    assert step(*singles(3), *coming, wanted=3, rolling=IN_PLACE, before=3, after=2).successor == 2
    assert step(*singles(3), *coming, wanted=1, rolling=BESIDE, before=3, after=2) == (1, 1)
    assert step(*singles(3), *coming, wanted=0, rolling=BESIDE, before=3, after=2) == (0, 0)


def test_a_share_that_comes_to_none_where_none_may_be_above_is_one() -> None:
    asked = service(maxSurge=0, maxUnavailable="25%")
    rolling = RollingUpdate(0, "25%")
    assert step(*singles(2), wanted=2, rolling=rolling, before=2, after=0, of=asked) == (1, 1)


def test_broken_pods_are_not_counted_on_and_go_first() -> None:
    broken = single("broken", ready=False, started=False)
    seen = (single("p0"), broken, leader(0))
    assert step(*seen, wanted=2, rolling=BESIDE, before=2, after=1) == (2, 1)
    assert step(single("p0"), broken, wanted=2, rolling=IN_PLACE, before=2, after=0).predecessor == 1
    coming = leader(0, ready=False)
    assert step(single("p0"), broken, coming, wanted=2, rolling=IN_PLACE, before=2, after=1).predecessor == 0


def test_groups_give_way_from_the_highest_place_and_a_broken_one_below_keeps_those_above() -> None:
    asked = service(pipeline=1)
    groups = (leader(0), leader(1))
    assert step(*groups, single("p"), wanted=2, rolling=BESIDE, before=2, after=1, of=asked) == (2, 1)
    half = (leader(0, ready=False), leader(1))
    assert step(*half, single("p"), wanted=2, rolling=BESIDE, before=2, after=1, of=asked) == (1, 2)
    assert step(*half, single("p"), single("q"), wanted=2, rolling=BESIDE, before=2, after=2, of=asked) == (2, 0)


def test_without_gpus_the_room_is_counted_in_pods() -> None:
    asked = service(gpus=0)
    pods = tuple(pod(f"p{each}") for each in range(4))
    assert step(*pods, wanted=4, rolling=IN_PLACE, before=4, after=1, of=asked).predecessor == 2
    assert step(wanted=4, rolling=IN_PLACE, before=4, after=1).predecessor == 2
