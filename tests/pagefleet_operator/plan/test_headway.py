"""A roll-out of groups is late when nothing came of it for as long as the service says."""

from dataclasses import replace
from typing import Any

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import LEAVING_COST, ChildKey, DeploymentView, Observed, Pod, PodProblem
from pagefleet_operator.facts.starts import Start
from pagefleet_operator.plan.headway import Headway, follow
from tests.pagefleet_operator.plan.build import at, pod

DEADLINE_S = 600
SET = ChildKey("LeaderWorkerSet", "s")


def leader(place: int, template: str = "new", **changes: Any) -> Pod:
    return pod(f"g{place} {template}", group=place, template_hash=template, **{"created": None, **changes})


def seen(*pods: Pod, template: str = "new", **changes: Any) -> Observed:
    return Observed(deployment=DeploymentView(name="s", template=template), pods=pods, grouped=True, **changes)


def after(seconds: float, observed: Observed, before: Headway | None = None, wanted: int = 2) -> Headway:
    found = follow(before, observed, wanted, at(seconds))
    assert found is not None
    return found


def late(headway: Headway, seconds: float) -> bool:
    return headway.overdue(DEADLINE_S, at(seconds)) is not None


def test_a_deployment_has_a_deadline_of_its_own() -> None:
    assert follow(None, Observed(grouped=True), 1, at(0)) is None
    assert follow(None, replace(seen(leader(0)), grouped=False), 1, at(0)) is None


def test_a_roll_out_that_stands_still_is_late_and_says_how_far_it_came() -> None:
    begun = after(0, seen(leader(0), leader(1, ready=False)))
    still = after(599, seen(leader(0), leader(1, ready=False)), begun)
    assert not late(still, 599)
    assert still.overdue(DEADLINE_S, at(600)) == (
        "no progress for 600 s (rollout.progressDeadlineSeconds): "
        "2 groups of the latest template were made, 1 became ready"
    )


def test_each_step_begins_the_time_anew_and_a_step_taken_twice_does_not() -> None:
    old = leader(0, "old")
    first = after(0, seen(old))
    made = after(100, seen(old, leader(1, ready=False)), first)
    ready = after(200, seen(old, leader(1)), made)
    fewer = after(300, seen(leader(1)), ready)
    assert [each.since for each in (made, ready, fewer)] == [at(each).wall for each in (100, 200, 300)]
    lost = after(400, seen(), fewer)
    again = after(500, seen(leader(1)), lost)
    assert again.since == at(300).wall, "made anew and failing again for ever is no progress"
    crashed = after(600, seen(leader(1, ready=False, terminating=True)), again)
    assert crashed.since == at(300).wall, "LWS deletes a group of which one crashed"
    gone = leader(1, ready=False, terminating=True, serving=False, deletion_cost=LEAVING_COST)
    of_worker = after(700, seen(gone), crashed)
    assert of_worker.since == at(300).wall, "a worker's crash takes its leader out of the Service first"
    assert late(of_worker, 900)


def test_one_that_was_complete_is_never_late_until_the_template_changes() -> None:
    both = seen(leader(0), leader(1))
    complete = after(0, both)
    broken = after(5000, seen(leader(0), leader(1, ready=False)), complete)
    assert not late(broken, 50_000)
    changed = after(6000, seen(leader(0), leader(1), template="newer"), broken)
    assert changed.since == at(6000).wall
    assert late(changed, 6600)


def test_a_group_is_ready_with_all_that_is_behind_its_leader() -> None:
    alone = seen(leader(0))
    alone = replace(alone, deployment=replace(alone.deployment or DeploymentView(name="s"), group_size=2))
    worker = pod("g0-1", group=0, ready=False)
    waits = replace(alone, workers=(replace(worker, started=False, running=False),))
    assert not after(0, alone, wanted=1).complete
    assert not after(0, waits, wanted=1).complete, "it has no place yet"
    assert after(0, replace(alone, workers=(worker,)), wanted=1).complete


def test_pods_of_the_workload_before_are_to_go_too() -> None:
    beside = seen(leader(0), leader(1), pod("of a Deployment", created=None))
    assert not after(0, beside).complete
    assert after(9, seen(leader(0), leader(1)), after(0, beside)).complete


def test_a_group_that_finishes_its_answers_is_waited_for_and_one_on_a_lost_node_is_not() -> None:
    leaves = leader(0, "old", terminating=True)
    begun = after(0, seen(leaves))
    assert after(500, seen(leaves), begun).since == at(500).wall
    told = leader(1, terminating=True, serving=False)
    assert after(500, seen(told), after(0, seen(told))).since == at(500).wall
    lost = replace(leaves, problem=PodProblem(Reason.NODE_LOST, "its node is away"))
    assert after(500, seen(lost), after(0, seen(lost))).since == at(0).wall


def test_one_that_was_complete_stays_so_while_another_group_finishes_its_answers() -> None:
    complete = after(0, seen(leader(0), leader(1), leader(2)), wanted=3)
    shrinks = seen(leader(0), leader(1, ready=False), leader(2, terminating=True, serving=False))
    assert not late(after(100, shrinks, complete), 50_000)


def test_no_time_passes_while_no_group_is_asked_for() -> None:
    written = [{"manager": labels.FIELD_MANAGER, "operation": "Apply", "time": "2026-01-01T00:00:20Z"}]
    asked = seen(children={SET: {"metadata": {"managedFields": written}}})
    unasked = replace(asked, deployment=DeploymentView(name="s", template="new", replicas=0))
    waits = after(7200, unasked)
    assert waits.since == at(7200).wall
    still = after(9000, unasked, waits)
    assert still.since == at(9000).wall
    assert late(after(9001, asked, still), 9600)


def test_the_set_remembers_that_it_was_complete_when_nobody_else_does() -> None:
    assert after(0, seen(leader(0))).completed is None
    assert after(0, seen(leader(0), leader(1))).completed == "new"
    long_ago = at(-86_400).wall
    broken = seen(leader(0, created=long_ago), leader(1, created=long_ago, ready=False))
    assert late(after(0, broken), 0)
    known = DeploymentView(name="s", template="new", was_complete=True)
    assert not late(after(0, replace(broken, deployment=known)), 50_000)


def test_what_is_not_remembered_is_told_by_the_times_of_the_objects() -> None:
    managers = [
        {"manager": labels.FIELD_MANAGER, "operation": "Apply", "time": "2026-01-01T00:00:20Z"},
        {"manager": "lws", "operation": "Update", "time": "2026-01-01T00:09:00Z"},
    ]
    children = {SET: {"metadata": {"managedFields": managers}}, ChildKey("Service", "s"): {"metadata": {}}}
    assert after(700, seen(children=children)).since == at(20).wall
    born = leader(0, ready=False, created=at(30).wall)
    assert after(700, seen(born, children=children)).since == at(30).wall
    ready = leader(0, created=at(30).wall, start=Start(ready=at(90).wall))
    assert after(700, seen(ready, children=children)).since == at(90).wall
    assert after(700, seen()).since == at(700).wall
