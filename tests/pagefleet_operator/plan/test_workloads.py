"""A Deployment or a LeaderWorkerSet makes the pods; where one follows the other, pods serve all the while."""

from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.observed import Body, ChildKey, Observed, Pod
from pagefleet_operator.plan.convergence import Action, Apply, Conflict, Remove, Resize, without_pods
from pagefleet_operator.plan.handover import Handover
from pagefleet_operator.plan.rollout import RollingUpdate
from pagefleet_operator.reconciling import workloads
from tests.pagefleet_operator.plan.build import pod

DEPLOYMENT, SET = ChildKey("Deployment", "s"), ChildKey("LeaderWorkerSet", labels.group_set_name("s"))


def service(*, pipeline: int = 2, **rollout: Any) -> InferenceService:
    spec = {
        "model": {"uri": "file:///m"},
        "engine": {"runtime": "vllm", "image": "v", "device": "cuda", "parallelism": {"pipeline": pipeline}},
        "rollout": rollout,
    }
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec})


def body(child: ChildKey, *, template: str = "new", leaves: bool = False, owner: str = "u", **spec: Any) -> Body:
    meta: dict[str, Any] = {"name": child.name, "uid": child.kind, "annotations": {labels.TEMPLATE: template}}
    meta["ownerReferences"] = [{"uid": owner, "controller": True}]
    meta |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaves else {}
    return {"kind": child.kind, "metadata": meta, "spec": spec, "status": {"readyReplicas": 1}}


def leader(name: str = "g0", **changes: Any) -> Pod:
    return pod(name, **{"group": 0, "template_hash": "new", **changes})


REMOVALS: tuple[Action, ...] = (Remove(DEPLOYMENT, {}), Remove(ChildKey("PodDisruptionBudget", "s"), {}))


def test_what_the_spec_asks_for_comes_before_what_is_there_still() -> None:
    both = {DEPLOYMENT: body(DEPLOYMENT), SET: body(SET)}
    assert workloads.live(service(), both) == both[SET]
    assert workloads.live(service(pipeline=1), both) == both[DEPLOYMENT]
    assert workloads.live(service(), {DEPLOYMENT: both[DEPLOYMENT]}) == both[DEPLOYMENT]
    assert workloads.live(service(), {ChildKey("Service", "s"): {}}) is None


def test_replicas_are_groups_where_a_set_makes_them() -> None:
    assert workloads.grouped(service(), {})
    assert not workloads.grouped(service(), {DEPLOYMENT: body(DEPLOYMENT)})
    assert workloads.grouped(service(pipeline=1), {SET: body(SET)})


def test_a_set_is_seen_by_its_leaders_and_their_templates() -> None:
    rolling = {"rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": "25%"}}
    children = {SET: body(SET, replicas=3, rolloutStrategy=rolling)}
    pods = (leader("a"), leader("b", template_hash="old"), leader("c", terminating=True), pod("of a Deployment"))
    view = workloads.view(service(), children, pods)
    assert view is not None
    assert (view.replicas, view.total, view.updated, view.ready) == (3, 2, 1, 1)
    assert (view.max_surge, view.max_unavailable, view.template) == ("1", "25%", "new")
    assert view.two_templates
    bare = workloads.view(service(), {SET: body(SET)}, ())
    assert bare is not None
    assert (bare.replicas, bare.two_templates) == (1, False)
    assert workloads.view(service(), {}, pods) is None


def test_a_roll_out_lasts_until_the_last_leader_of_an_earlier_template_is_gone() -> None:
    for leaves, is_rolling in (("old", True), ("new", False)):
        pods = (leader("g0", terminating=True, template_hash=leaves), leader("g1"))
        view = workloads.view(service(), {SET: body(SET, replicas=2)}, pods)
        assert view is not None
        assert view.two_templates == is_rolling


@pytest.mark.parametrize(("leaves", "is_rolling"), [(False, True), (True, False)])
def test_a_workload_beside_it_is_an_earlier_template_until_it_goes(leaves: bool, is_rolling: bool) -> None:
    children = {SET: body(SET, replicas=1), DEPLOYMENT: body(DEPLOYMENT, leaves=leaves)}
    view = workloads.view(service(), children, (leader(),))
    assert view is not None
    assert (view.has_predecessor, view.two_templates) == (is_rolling, is_rolling)
    other = workloads.view(service(pipeline=1), children, (leader(),))
    assert other is not None
    assert other.name == "s"


@pytest.mark.parametrize(("copied", "pipeline"), [(ChildKey("LeaderWorkerSet", "copy"), 1), (DEPLOYMENT, 2)])
def test_a_workload_of_somebody_else_is_no_earlier_one(copied: ChildKey, pipeline: int) -> None:
    asked = service(pipeline=pipeline)
    own = workloads.asked_for(asked)
    copy = body(copied, owner="somebody else")
    view = workloads.view(asked, {copied: copy, own: body(own)}, ())
    assert view is not None
    assert (view.name, view.has_predecessor) == (own.name, False)
    assert workloads.view(asked, {copied: copy}, ()) is None
    assert workloads.grouped(asked, {copied: copy}) == (pipeline == 2)


def gone(before: int, seen: Observed, step: Handover | None) -> tuple[Action, ...]:
    """What is done with a Deployment of so many replicas."""
    children = {DEPLOYMENT: body(DEPLOYMENT, replicas=before), SET: body(SET, replicas=1)}
    return workloads.keeping_predecessor(REMOVALS, service(), replace(seen, children=children), step)


def test_the_earlier_workload_shrinks_and_goes_with_its_last_pod() -> None:
    seen = Observed()
    assert gone(3, seen, Handover(1, 3)) == (REMOVALS[1],)
    *rest, resize = gone(3, seen, Handover(1, 2))
    assert (rest, resize) == ([REMOVALS[1]], Resize(DEPLOYMENT, body(DEPLOYMENT, replicas=3), 2))
    assert gone(3, seen, Handover(3, 0)) == REMOVALS
    assert workloads.keeping_predecessor(REMOVALS, service(), seen, None) == REMOVALS


def test_the_number_of_either_is_as_the_roll_out_rules_it() -> None:
    rolling = RollingUpdate(1, 0)
    seen = Observed(pods=(pod("a"), pod("b")), children={DEPLOYMENT: body(DEPLOYMENT, replicas=2)})
    assert workloads.handover(service(), seen, 2, rolling) == Handover(1, 2)
    made = replace(seen, children={**seen.children, SET: body(SET, replicas=2)}, grouped=True)
    assert workloads.handover(service(), made, 2, rolling) == Handover(2, 2)
    leaves = {DEPLOYMENT: body(DEPLOYMENT, leaves=True, replicas=2), SET: body(SET)}
    assert workloads.handover(service(), replace(seen, children=leaves), 2, rolling) is None
    assert workloads.handover(service(pipeline=1), seen, 2, rolling) is None


def test_while_pods_stay_untouched_neither_workload_is_written_nor_removed_and_conflicts_are_told() -> None:
    applied = Apply({"kind": "LeaderWorkerSet", "metadata": {"name": "x"}})
    account = Apply({"kind": "ServiceAccount", "metadata": {"name": "s"}})
    conflict = Conflict(SET, "somebody else's")
    resized = Resize(DEPLOYMENT, {}, 1)
    assert without_pods((account, applied, *REMOVALS, resized, conflict)) == (account, REMOVALS[1], conflict)
