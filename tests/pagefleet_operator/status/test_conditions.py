from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_api.status import Status
from pagefleet_operator.autoscaling import Memory, decide
from pagefleet_operator.facts.observed import (
    ChildKey,
    DeploymentView,
    Evidence,
    Observed,
    Pod,
    PodProblem,
    Progress,
    Room,
)
from pagefleet_operator.facts.trials import Phase, Trial
from pagefleet_operator.plan.convergence import Conflict, Wait
from pagefleet_operator.plan.prefetch import Prefetch, Stage
from pagefleet_operator.supplies import of_prefetch
from tests.pagefleet_operator.autoscaling.build import SILENT, UNPLACED
from tests.pagefleet_operator.plan.build import START, drained, observed, pod
from tests.pagefleet_operator.status.build import (
    POLICY,
    at,
    autoscaled,
    condition,
    fleet,
    outcome,
    ready,
    service,
    status,
    supplied,
)

CONFLICT = Conflict(ChildKey("Service", "llama"), "Service llama exists and is not ours")


def sick(reason: Reason, words: str = "words", name: str = "b") -> Pod:
    return pod(name, ready=False, problem=PodProblem(reason, words))


@pytest.mark.parametrize(
    ("seen", "wanted", "expected"),
    [
        (observed(pod("a"), pod("b")), 2, ("True", "Serving", "2 of 2 pods serve")),
        (
            observed(pod("a"), sick(Reason.UNSCHEDULABLE, "0/2 nodes are available")),
            2,
            ("True", "Serving", "1 of 2 pods serves; b: 0/2 nodes are available"),
        ),
        (observed(sick(Reason.OUT_OF_MEMORY, "OOMKilled")), 1, ("False", "OutOfMemory", "b: OOMKilled")),
        (
            observed(sick(Reason.STARTING), sick(Reason.IMAGE_PULL_FAILED, "not found", "c")),
            2,
            ("False", "ImagePullFailed", "c: not found"),
        ),
        (Observed(), 0, ("False", "Paused", "spec.replicas is 0")),
        (Observed(), 1, ("False", "Starting", "pods are being created")),
        (
            Observed(DeploymentView(name="d", replica_failure="exceeded quota: q")),
            1,
            ("False", "QuotaExceeded", "exceeded quota: q"),
        ),
        (
            Observed(DeploymentView(name="d"), evidence=Evidence(refused='pods "d-1" is forbidden: exceeded quota: q')),
            1,
            ("False", "QuotaExceeded", "exceeded quota: q"),
        ),
        (
            Observed(DeploymentView(name="d", replica_failure="the object is invalid")),
            1,
            ("False", "ApplyFailed", "the object is invalid"),
        ),
        (observed(pod("a", terminating=True), drained("b")), 1, ("False", "Starting", "pods are being created")),
    ],
)
def test_ready_means_that_something_serves_and_else_gives_the_cause(
    seen: Observed, wanted: int, expected: tuple[str, str, str]
) -> None:
    found = condition(status(seen, wanted), "Ready")
    assert found is not None
    assert (found.status, found.reason, found.message) == expected


@pytest.mark.parametrize(("place", "grouped"), [(0, True), (1, True), (0, False)])
def test_a_group_waits_for_the_leader_that_has_its_place(place: int, grouped: bool) -> None:
    seen = replace(observed(pod("a", terminating=True, group=place)), grouped=grouped)
    told = condition(status(seen, 1), "Ready")
    assert told is not None
    waits = "a is ending, and its group is made anew after it"
    assert told.message == (waits if grouped and place == 0 else "pods are being created")


def test_groups_that_make_no_progress_are_stalled_and_go_on_serving() -> None:
    found = status(observed(pod("a"), sick(Reason.STARTING)), 2, overdue="no progress for 60 s")
    stalled, told = condition(found, "Stalled"), condition(found, "Ready")
    assert stalled is not None and told is not None
    assert (stalled.status, stalled.reason) == ("True", "ProgressDeadlineExceeded")
    assert (stalled.message, told.status) == ("no progress for 60 s", "True")
    assert condition(found, "Reconciling") is None


def test_a_roll_out_of_a_serving_fleet_stays_ready() -> None:
    found = status(observed(pod("old"), sick(Reason.STARTING), replicas=1, rollout=True), 1)
    kinds = {one.type: (one.status, one.reason) for one in found.conditions}
    assert kinds["Ready"] == ("True", "Serving")
    assert kinds["Reconciling"] == ("True", "RollingOut")


@pytest.mark.parametrize(
    ("seen", "wanted", "reason"),
    [
        (observed(pod("a"), drained("b")), 1, "Draining"),
        (observed(pod("a"), sick(Reason.STARTING)), 2, "Scaling"),
        (observed(pod("a"), pod("b")), 1, "Scaling"),
        (observed(pod("a")), 1, None),
        (observed(pod("a"), drained("b", deletion_cost=-2000)), 1, None),
    ],
)
def test_reconciling_is_there_only_while_true(seen: Observed, wanted: int, reason: str | None) -> None:
    found = condition(status(seen, wanted), "Reconciling")
    assert (found and found.reason) == reason
    assert condition(status(seen, wanted), "Stalled") is None


def _on_trial(phase: Phase, **changes: Any) -> Status:
    trial = Trial(phase=phase, since=START, stable="one", pods=1, **changes)
    view = DeploymentView(name="llama", replicas=1, total=2, updated=1, trial=trial)
    return status(Observed(view, (pod("a"), pod("b"))), 1)


def test_a_trial_is_told_in_the_same_words_for_a_whole_phase() -> None:
    for phase, words in (
        (Phase.STARTING, "waits for 1 pod of the latest template beside the others"),
        (Phase.MEASURING, "compares 1 pod of the latest template with the others since 2026-01-01T00:00:00Z"),
    ):
        told = condition(_on_trial(phase), "Reconciling")
        assert told is not None
        assert (told.reason, told.message) == ("OnTrial", words)


def test_a_trial_tells_when_it_is_judged_and_how_many_requests_count_so_far() -> None:
    view = DeploymentView(name="llama", trial=Trial(phase=Phase.MEASURING, since=START, stable="one", pods=1))
    analysed = service(rollout={"analysis": {"holdSeconds": 300}})
    texts = []
    for requests in (None, *range(100)):
        found = status(Observed(view, (pod("a"), pod("b"))), 1, of=analysed, trial_requests=requests)
        told = condition(found, "Reconciling")
        assert told is not None
        texts.append(told.message)
    assert texts[0].endswith(
        "; judged at 2026-01-01T00:05:00Z if each had 30 requests by then (at least 0 of 30 so far), else at "
        "2026-01-01T00:20:00Z at the latest"
    )
    counted = [text.partition("(at least ")[2].partition(" of")[0] for text in dict.fromkeys(texts)]
    assert counted == ["0", "10", "20", "30"], "each of them is a write"


def test_a_change_that_was_taken_back_stalls_the_service_with_both_numbers() -> None:
    words = "TTFT p95 760.0 ms against 380.0 ms, at most 456.0 ms"
    found = _on_trial(Phase.ROLLED_BACK, reason=Reason.SLO_REGRESSION, words=words)
    stalled = condition(found, "Stalled")
    assert stalled is not None
    assert (stalled.reason, stalled.message.startswith(words)) == ("SLORegression", True)
    assert condition(found, "Reconciling") is None


def test_a_stalled_service_is_not_reconciling_too() -> None:
    late = DeploymentView(
        name="d", total=2, updated=1, progressing=Progress("False", "ProgressDeadlineExceeded", "no progress")
    )
    found = status(Observed(late), 1)
    stalled = condition(found, "Stalled")
    assert stalled is not None
    assert (stalled.status, stalled.reason, stalled.message) == ("True", "ProgressDeadlineExceeded", "no progress")
    assert condition(found, "Reconciling") is None


def test_a_conflict_and_a_refusal_stall() -> None:
    foreign = status(Observed(), 1, conflicts=[CONFLICT])
    reasons = {one.type: one.reason for one in foreign.conditions}
    assert (reasons["Ready"], reasons["Stalled"]) == ("NameConflict", "NameConflict")
    said = 'admission webhook "w" denied the request: no'
    refused = status(Observed(), 1, apply_error=said)
    for kind, state in (("Ready", "False"), ("Stalled", "True")):
        found = condition(refused, kind)
        assert found is not None
        assert (found.status, found.reason, found.message) == (state, "AdmissionDenied", said)


def test_a_refusal_does_not_hide_that_pods_serve() -> None:
    found = condition(status(observed(pod("a")), 1, apply_error="exceeded quota: q"), "Ready")
    assert found is not None
    assert (found.status, found.message) == ("True", "1 of 1 pod serves; exceeded quota: q")


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(60, "NodeRefused"), (599, "NodeRefused"), (601, "Starting")],
    ids=["now", "lately", "long ago"],
)
def test_what_a_pod_failed_of_lately_is_told_while_its_successor_only_starts(seconds: int, reason: str) -> None:
    problem = PodProblem(Reason.NODE_REFUSED, "no healthy devices", at(0).wall)
    failed = pod("a", ready=False, finished=True, problem=problem)
    seen = observed(failed, sick(Reason.STARTING))
    found = condition(status(seen, 1, now=at(seconds)), "Ready")
    assert found is not None and found.reason == reason
    serves = condition(status(observed(failed, pod("b")), 1, now=at(seconds)), "Ready")
    assert serves is not None and serves.message == "1 of 1 pod serves"


def test_a_pod_that_a_lost_node_keeps_is_told_of_until_enough_others_serve() -> None:
    lost = sick(Reason.NODE_LOST, "its node is away", "a")
    gone = replace(lost, terminating=True)
    starting = condition(status(observed(gone, sick(Reason.STARTING)), 1), "Ready")
    assert starting is not None and (starting.reason, starting.message) == ("NodeLost", "a: its node is away")
    replaced = condition(status(observed(gone, pod("b")), 1), "Ready")
    assert replaced is not None and (replaced.status, replaced.message) == ("True", "1 of 1 pod serves")


def test_a_lost_pod_behind_a_leader_is_told_of_though_its_leader_ends_too() -> None:
    lost = replace(sick(Reason.NODE_LOST, "its node is away", "g-1"), group=0, terminating=True)
    leader = pod("g", group=0, terminating=True)
    seen = replace(observed(leader, sick(Reason.STARTING)), workers=(lost,))
    found = condition(status(seen, 1), "Ready")
    assert found is not None and (found.reason, found.message) == ("NodeLost", "g-1: its node is away")


def test_what_is_left_of_a_predecessor_is_waited_for() -> None:
    found = status(Observed(), 1, waits=[Wait(ChildKey("Service", "llama"), "Service llama is being deleted")])
    reconciling = condition(found, "Reconciling")
    assert reconciling is not None
    assert (reconciling.reason, reconciling.message) == ("PredecessorLeaving", "Service llama is being deleted")
    assert condition(found, "Stalled") is None


def test_a_change_that_the_controller_has_not_looked_at_is_in_progress() -> None:
    serving = observed(pod("a"))
    assert serving.deployment is not None
    late = Progress("False", "ProgressDeadlineExceeded", "no progress")
    lagging = replace(serving.deployment, generation=4, observed_generation=3, progressing=late)
    found = status(replace(serving, deployment=lagging), 1)
    reasons = {one.type: one.reason for one in found.conditions}
    assert (reasons["Ready"], reasons["Reconciling"]) == ("Serving", "Applying")
    assert "Stalled" not in reasons


def test_scaling_is_not_called_a_roll_out_while_the_controller_lags() -> None:
    serving = observed(pod("a"))
    assert serving.deployment is not None
    lagging = replace(serving.deployment, generation=4, observed_generation=3)
    reconciling = condition(status(replace(serving, deployment=lagging), 2), "Reconciling")
    assert reconciling is not None and reconciling.reason == "Scaling"


def test_fixed_replicas_say_that_no_scaling_is_active() -> None:
    found = status(observed(pod("a")), 1)
    assert [(one.type, one.status, one.reason) for one in found.conditions] == [
        ("Ready", "True", "Serving"),
        ("ScalingActive", "False", "NotAutoscaled"),
    ]


def test_an_autoscaled_service_has_the_three_conditions_of_an_autoscaler() -> None:
    found = status(observed(pod("a")), 1, scaled=outcome(fleet(ready())))
    assert [(one.type, one.status, one.reason) for one in found.conditions] == [
        ("Ready", "True", "Serving"),
        ("ScalingActive", "True", "ValidMetrics"),
        ("AbleToScale", "True", "ReadyForNewScale"),
        ("ScalingLimited", "False", "DesiredWithinRange"),
    ]


def test_readiness_does_not_hang_on_the_scaler() -> None:
    found = status(observed(pod("a")), 1, scaled=outcome(fleet(SILENT)))
    reasons = {one.type: (one.status, one.reason) for one in found.conditions}
    assert reasons["Ready"] == ("True", "Serving")
    assert reasons["ScalingActive"] == ("False", "MetricsStale")


def test_a_number_in_the_spec_that_is_ignored_is_said_to_be() -> None:
    calm = condition(
        status(observed(pod("a")), 1, of=autoscaled(replicas=5), scaled=outcome(fleet(ready()))), "AbleToScale"
    )
    assert calm is not None
    assert calm.reason == "ReplicasIgnored"
    assert calm.message == "spec.replicas 5 is ignored while spec.autoscaling is set; the number follows the load"
    pods = outcome(fleet(ready(), UNPLACED))
    busy = condition(status(observed(pod("a")), 2, of=autoscaled(replicas=5), scaled=pods), "AbleToScale")
    assert busy is not None
    assert busy.reason == "PendingPods"
    assert busy.message.startswith("spec.replicas 5 is ignored")


def test_the_transition_time_moves_only_with_the_status() -> None:
    first = status(observed(pod("a")), 1, now=at(0))
    again = status(observed(pod("a"), sick(Reason.STARTING)), 2, previous=first, now=at(60))
    down = status(observed(sick(Reason.CRASH_LOOP)), 1, previous=again, now=at(120))
    times = [found.last_transition_time for one in (first, again, down) if (found := condition(one, "Ready"))]
    assert times == ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T00:02:00Z"]
    assert {found.observed_generation for found in down.conditions} == {3}


def test_one_sample_in_ten_that_is_lost_for_half_an_hour_changes_nothing_that_is_said() -> None:
    memory: Memory | None = None
    said, found = set(), Status()
    for number in range(900):
        pods = fleet(SILENT if number % 10 == 9 else ready(0, 3), ready(0, 3))
        scaled = decide(POLICY, pods, memory, at(2.0 * number))
        memory = scaled.memory
        found = status(observed(pod("a"), pod("b")), 2, scaled=scaled, previous=found, now=at(2.0 * number))
        said.add(tuple((each.type, each.status, each.last_transition_time) for each in found.conditions))
    assert len(said) == 1, said


def test_what_is_free_on_the_nodes_is_in_the_message_of_a_pod_that_waits() -> None:
    waits = pod("b", ready=False, problem=PodProblem(Reason.UNSCHEDULABLE, "full"), extended={"nvidia.com/gpu": 2})
    room = Room(resource="nvidia.com/gpu", free_by_node={"n": 1}, allocatable=8)
    seen = replace(observed(waits), evidence=Evidence(room=room))
    assert seen.room is room
    found = condition(status(seen, 1), "Ready")
    assert found is not None
    assert found.message == "b: full; it needs 2 nvidia.com/gpu: 1 free on the node with most left, 1 of 8 on all nodes"


def test_warnings_end_what_ready_says_in_any_state() -> None:
    for seen in (observed(pod("a")), observed(sick(Reason.STARTING))):
        found = condition(status(seen, 1, warnings=("the template is loose", "no revision")), "Ready")
        assert found is not None
        assert found.message.endswith("; the template is loose; no revision")


@pytest.mark.parametrize(
    ("stage", "cached", "ready"),
    [
        (Stage.FETCHING, ("False", "Fetching"), ("False", "ModelNotCached", "pods wait for their model: words")),
        (
            Stage.FAILING,
            ("False", "ModelFetchFailed"),
            ("False", "ModelFetchFailed", "pods wait for their model: words"),
        ),
        (Stage.CACHED, ("True", "Cached"), ("False", "Starting", "pods are being created")),
    ],
)
def test_a_cached_model_is_waited_for(stage: Stage, cached: tuple[str, str], ready: tuple[str, str, str]) -> None:
    found = supplied(Observed(), of_prefetch(Prefetch(stage, "words"), ()))
    told, is_ready, reconciling = (condition(found, kind) for kind in ("ModelCached", "Ready", "Reconciling"))
    assert told is not None and is_ready is not None and reconciling is not None
    assert (told.status, told.reason, told.message) == (*cached, "words")
    assert (is_ready.status, is_ready.reason, is_ready.message) == ready
    assert reconciling.reason == ("Scaling" if stage is Stage.CACHED else "Fetching")


def test_a_service_that_serves_stays_ready_while_its_next_model_is_on_its_way() -> None:
    found = condition(supplied(observed(pod("a")), of_prefetch(Prefetch(Stage.FAILING, "words"), ())), "Ready")
    assert found is not None and found.status == "True"


def test_ready_does_not_depend_on_the_autoscalers_samples() -> None:
    blind = outcome(fleet(SILENT, SILENT))
    found = status(observed(pod("a"), pod("b")), 2, scaled=blind)
    ready_condition, scaling = condition(found, "Ready"), condition(found, "ScalingActive")
    assert ready_condition is not None and (ready_condition.status, ready_condition.reason) == ("True", "Serving")
    assert scaling is not None and (scaling.status, scaling.reason) == ("False", "MetricsStale")
