"""Groups of a LeaderWorkerSet leave from the highest place on, and none of them before it has finished."""

from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import LEAVING_COST, DeploymentView, Observed, Pod, PodProblem
from pagefleet_operator.plan.groups import lacking
from pagefleet_operator.plan.replicas import ReplicaPlan, plan_replicas
from tests.pagefleet_operator.plan.build import NOW, drained, observed, pod, sample


def leader(place: int, *, out: bool = False, **changes: Any) -> Pod:
    return (drained if out else pod)(f"g{place}", group=place, **changes)


def groups(*pods: Pod, replicas: int | None = None, rollout: bool = False, **running: int) -> Observed:
    samples = {name: sample(number) for name, number in running.items()}
    return replace(observed(*pods, replicas=replicas, rollout=rollout, **samples), grouped=True)


def plan(wanted: int, seen: Observed) -> ReplicaPlan:
    return plan_replicas(wanted, seen, NOW, drain_timeout_s=60)


def names(orders: tuple[object, ...]) -> list[str]:
    return [order.pod.name for order in orders]  # type: ignore[attr-defined]


def test_the_highest_place_drains_though_another_is_idler() -> None:
    found = plan(2, groups(leader(0), leader(1), leader(2), g0=0, g1=0, g2=5))
    assert names(found.drain) == ["g2"]
    assert found.deployment_replicas == 3


def test_a_group_that_still_drains_keeps_those_below_it() -> None:
    busy = {"ready": True}
    found = plan(1, groups(leader(0), leader(1, out=True), leader(2, out=True, **busy), g1=0, g2=3))
    assert found.deployment_replicas == 3


def test_places_that_are_wanted_again_come_back() -> None:
    found = plan(2, groups(leader(0), leader(1, out=True), leader(2, out=True)))
    assert names(found.undrain) == ["g1"]


def test_one_that_serves_stays_for_as_long_as_too_few_below_it_do() -> None:
    broken = leader(0, ready=False, started=False)
    found = plan(1, groups(broken, leader(1)))
    assert (names(found.drain), found.deployment_replicas) == ([], 2)


def behind(place: int, **changes: Any) -> Pod:
    return pod(f"g{place}-1", group=place, **changes)


ENDED = behind(0, ready=False, running=False)
AWAY = behind(0, ready=False, problem=PodProblem(Reason.NODE_LOST, "its node is away"))


@pytest.mark.parametrize("lost", [ENDED, AWAY])
def test_a_group_that_lost_a_pod_gets_no_requests_until_that_pod_is_back(lost: Pod) -> None:
    both, waits = (leader(0), leader(1)), behind(1, ready=False, started=False)
    assert names(plan(2, replace(groups(*both, g0=0, g1=0), workers=(behind(0), waits))).drain) == []
    seen = replace(groups(*both, g0=0, g1=4), workers=(lost, behind(1)))
    for rolling in (seen, replace(seen, deployment=groups(*both, rollout=True).deployment)):
        found = plan(2, rolling)
        assert [(order.pod.name, order.deletion_cost) for order in found.drain] == [("g0", LEAVING_COST)]
        assert (found.deployment_replicas, found.draining) == (2, 0)
        assert "g0 (a pod of its group is lost)" in found.events[0].message
    out = replace(seen, pods=(leader(0, out=True, deletion_cost=LEAVING_COST), leader(1)))
    assert (names(plan(2, out).drain), names(plan(2, out).undrain)) == ([], [])
    assert plan(2, out).tell == (), "its engine, which says that it is ready, is not drained"
    whole = replace(out, workers=(behind(0), behind(1)))
    assert names(plan(2, whole).undrain) == ["g0"]
    assert [(order.pod.name, order.drain) for order in plan(0, whole).tell] == [("g0", True)], "one that leaves is"


@pytest.mark.parametrize("problem", [None, PodProblem(Reason.ENGINE_UNREADY, "its readiness probe fails")])
def test_a_pod_that_is_not_ready_for_another_container_in_it_leaves_its_group_alone(problem: PodProblem | None) -> None:
    beside = behind(0, ready=False, problem=problem)
    found = plan(2, replace(groups(leader(0), leader(1), g0=0, g1=4), workers=(beside, behind(1))))
    assert (found.drain, found.events) == ((), ())


def test_a_group_that_lost_a_pod_spares_none_above_it() -> None:
    seen = replace(groups(leader(0), leader(1), g0=0, g1=0), workers=(ENDED, behind(1)))
    assert (names(plan(1, seen).drain), plan(1, seen).deployment_replicas) == (["g0"], 2)


def test_surge_groups_are_their_controllers_business() -> None:
    found = plan(2, groups(leader(0), leader(1), leader(2), replicas=2))
    assert (names(found.drain), found.deployment_replicas) == ([], 2)


def test_in_a_roll_out_the_number_goes_down_at_once() -> None:
    found = plan(1, groups(leader(0), leader(1), rollout=True))
    assert (names(found.drain), found.deployment_replicas) == ([], 1)


def test_the_first_groups_are_as_many_as_are_wanted_beside_the_pods_of_a_deployment() -> None:
    found = plan(2, Observed(pods=(pod("old"),), grouped=True))
    assert (names(found.drain), found.deployment_replicas) == ([], 2)


def test_sets_lack_pods_for_groups_that_are_not_there_and_for_groups_that_are_not_whole() -> None:
    view = DeploymentView(name="s", replicas=2, group_size=2, created=NOW.wall)
    seen = Observed(deployment=view, pods=(leader(0),), workers=(behind(0),), grouped=True)
    assert lacking(seen) == {"s": NOW.wall}
    both = replace(seen, pods=(leader(0), leader(1)))
    assert lacking(both) == {"g1": leader(1).created}
    assert lacking(replace(both, workers=())) == {"g0": leader(0).created, "g1": leader(1).created}
    assert lacking(replace(both, workers=(behind(0), behind(1)))) == {}
    assert lacking(replace(seen, grouped=False)) == lacking(replace(seen, deployment=None)) == {}
