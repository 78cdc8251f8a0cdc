from pagefleet_api.reasons import Reason
from pagefleet_api.status import Status
from pagefleet_operator.facts.observed import Observed, Pod, PodProblem
from pagefleet_operator.status import Invalid, counted_status, invalid_status
from tests.pagefleet_operator.plan.build import drained, observed, pod
from tests.pagefleet_operator.status.build import at, condition, fleet, outcome, ready, status

WORDS = "spec.podTemplate.spec.restartPolicy: leave it out"
INVALID = Invalid(WORDS, 4)
TWO = status(observed(pod("a"), pod("b")), 2)


def _ready(found: Status) -> tuple[str, str, str]:
    verdict = condition(found, "Ready")
    assert verdict is not None and verdict.observed_generation == found.observed_generation
    return verdict.status, verdict.reason, verdict.message


def test_while_the_spec_cannot_be_used_what_ran_before_is_told_as_it_is() -> None:
    crash = PodProblem(Reason.CRASH_LOOP, "exit code 1")
    one = observed(pod("a"), pod("b", ready=False, problem=crash))
    seen = status(one, 2, scaled=outcome(fleet(ready(), ready())), previous=TWO, now=at(60))
    found = invalid_status(INVALID, seen, TWO, at(60))
    assert (found.observed_generation, found.ready, found.ready_replicas) == (4, "1/2", 1)
    goes_on = "what ran before goes on: 1 of 2 pods serves; b: exit code 1"
    assert _ready(found) == ("True", "InvalidSpec", f"{WORDS}\n{goes_on}")
    assert found.autoscaling == seen.autoscaling
    kinds = [one.type for one in found.conditions]
    assert kinds == ["Ready", "Stalled", "ScalingActive", "AbleToScale", "ScalingLimited"]
    assert {one.observed_generation for one in found.conditions} == {4}
    assert Status.model_validate(found.wire()) == found


def test_ready_turns_false_with_the_last_pod_of_the_spec_before_and_only_then() -> None:
    still = invalid_status(INVALID, status(observed(pod("a")), 2), TWO, at(60))
    kept = condition(still, "Ready")
    assert kept is not None and kept.last_transition_time == "2026-01-01T00:00:00Z"
    none = invalid_status(INVALID, status(Observed(), 2), still, at(120))
    assert _ready(none) == ("False", "InvalidSpec", f"{WORDS}\nwhat ran before goes on: pods are being created")
    turned = condition(none, "Ready")
    assert turned is not None and turned.last_transition_time == "2026-01-01T00:02:00Z"


def test_a_spec_that_never_could_be_used_is_told_alone() -> None:
    found = invalid_status(INVALID, counted_status((), Status(), at(0)), Status(), at(0))
    assert _ready(found) == ("False", "InvalidSpec", WORDS)
    assert (found.replicas, found.ready) == (0, None)
    assert [one.type for one in found.conditions] == ["Ready", "Stalled"]


def test_pods_are_counted_where_nobody_remembers_the_spec_before() -> None:
    pods: tuple[Pod, ...] = (pod("a"), pod("b", ready=False), drained("c"), pod("d", terminating=True))
    found = invalid_status(INVALID, counted_status(pods, TWO, at(60)), TWO, at(60))
    assert (found.replicas, found.ready_replicas, found.draining_replicas, found.ready) == (2, 1, 1, "1/2")
    idle = "the operator changes nothing about them until the spec can be read again"
    assert _ready(found) == ("True", "InvalidSpec", f"{WORDS}\nwhat ran before goes on: 1 of 2 pods serves; {idle}")
    assert counted_status(pods, Status(), at(0)).ready == "1/2", "as many as there are"
    gone = invalid_status(INVALID, counted_status((), found, at(90)), found, at(90))
    assert (_ready(gone), gone.ready) == (("False", "InvalidSpec", WORDS), "0/2")
