import pytest

from pagefleet_api.load import EngineState, Load
from pagefleet_api.reasons import EventReason, Reason
from pagefleet_operator.facts.observed import LEAVING_COST, Observed, PodProblem, Sample
from pagefleet_operator.plan.replicas import DRAINING_COST, ReplicaPlan, Tell, plan_replicas
from tests.pagefleet_operator.plan.build import NOW, START, drained, observed, pod, sample

DRAINING = EngineState.DRAINING
CRASH = PodProblem(Reason.CRASH_LOOP, "exit code 1")


def plan(wanted: int, seen: Observed, drain_timeout_s: float = 600) -> ReplicaPlan:
    return plan_replicas(wanted, seen, NOW, drain_timeout_s=drain_timeout_s)


def drains(steps: ReplicaPlan) -> list[tuple[str, int]]:
    return [(step.pod.name, step.deletion_cost) for step in steps.drain]


def test_a_fleet_at_its_number_needs_nothing() -> None:
    assert plan(2, observed(pod("a"), pod("b"), a=sample(3), b=sample(0))) == ReplicaPlan(2)


def test_the_number_goes_up_at_once() -> None:
    assert plan(3, observed(pod("a"))) == ReplicaPlan(3)
    assert plan(3, Observed()) == ReplicaPlan(3)


def test_the_idlest_drains_and_keeps_its_place_until_it_is_dry() -> None:
    seen = observed(pod("busy"), pod("idle"), pod("middle"), busy=sample(5), idle=sample(0), middle=sample(2))
    steps = plan(1, seen)
    assert drains(steps) == [("idle", DRAINING_COST), ("middle", DRAINING_COST)]
    assert steps.drain[0].started == "2026-01-01T00:00:00.000000Z"
    assert (steps.deployment_replicas, steps.draining) == (3, 2)
    assert [(note.reason, note.message) for note in steps.events] == [
        (EventReason.DRAINING, "2 to leave: idle (0 in flight), middle (2 in flight)")
    ]


def test_among_equals_the_newest_drains() -> None:
    young = pod("young", created=START)
    assert drains(plan(1, observed(pod("old"), young, old=sample(1), young=sample(1)))) == [("young", DRAINING_COST)]
    unknown = pod("unknown", created=None)
    assert drains(plan(1, observed(unknown, young, unknown=sample(1), young=sample(1)))) == [("young", DRAINING_COST)]


def test_a_pod_without_a_sample_counts_as_busy() -> None:
    steps = plan(1, observed(pod("silent"), pod("busy"), busy=sample(7)))
    assert drains(steps) == [("busy", DRAINING_COST)]
    alone = plan(0, observed(pod("silent")))
    assert alone.events[0].message == "1 to leave: silent (load unknown)"


def test_pods_that_cannot_serve_leave_first_and_at_once() -> None:
    pending = pod("pending", ready=False, started=False)
    crashing = pod("crashing", ready=False, running=False, problem=CRASH)
    seen = observed(pod("a"), crashing, pending, pod("b"), a=sample(0), b=sample(0))
    steps = plan(2, seen)
    assert drains(steps) == [("crashing", LEAVING_COST), ("pending", LEAVING_COST)]
    assert (steps.deployment_replicas, steps.draining) == (2, 0)
    assert steps.events[0].message == "2 to leave: crashing (not ready), pending (not ready)"


def test_a_pod_that_fails_its_probe_and_answers_still_drains() -> None:
    blinking = pod("blinking", ready=False)
    assert drains(plan(1, observed(pod("a"), blinking, a=sample(4), blinking=sample(3)))) == [
        ("blinking", DRAINING_COST)
    ]


def test_pausing_drains_every_pod() -> None:
    assert len(plan(0, observed(pod("a"), pod("b"))).drain) == 2


@pytest.mark.parametrize(
    ("since_s", "age_s", "running", "finished"),
    [
        pytest.param(10.0, 0.5, 0, True, id="dry"),
        pytest.param(10.0, 0.5, 1, False, id="one answer still runs"),
        pytest.param(10.0, 8.5, 0, False, id="the sample is from before the flip had settled"),
        pytest.param(1.9, 0.0, 0, False, id="the flip has not settled"),
        pytest.param(100.0, 40.0, 0, False, id="the sample is old"),
    ],
)
def test_a_drain_ends_with_an_idle_sample_from_after_the_flip(
    since_s: float, age_s: float, running: int, finished: bool
) -> None:
    seen = observed(pod("a"), drained("b", since_s), b=sample(running, DRAINING, age_s=age_s), a=sample(1))
    steps = plan(1, seen)
    assert [(step.pod.name, step.aborted) for step in steps.release] == ([("b", 0)] if finished else [])
    assert (steps.deployment_replicas, steps.draining) == ((1, 0) if finished else (2, 1))


def test_a_finished_drain_is_told_with_its_time() -> None:
    steps = plan(1, observed(pod("a"), drained("b", 41.2), b=sample(0, DRAINING)))
    assert steps.release[0].deletion_cost == LEAVING_COST
    assert [(note.reason, note.message) for note in steps.events] == [
        (EventReason.DRAINED, "Drained in 41 s, 0 aborted: b")
    ]
    assert not steps.events[0].warning


def test_a_released_pod_is_not_released_twice() -> None:
    steps = plan(1, observed(pod("a"), drained("b", deletion_cost=LEAVING_COST), b=sample(0, DRAINING)))
    assert steps == ReplicaPlan(1)


def test_the_timeout_ends_a_drain_and_counts_what_it_cuts() -> None:
    steps = plan(1, observed(pod("a"), drained("b", 600), b=sample(3, DRAINING)))
    assert (steps.release[0].aborted, steps.deployment_replicas) == (3, 1)
    assert steps.events[0].message == "Drain timed out after 600 s, 3 aborted: b"
    assert steps.events[0].reason is EventReason.DRAIN_TIMED_OUT
    assert steps.events[0].warning
    gone = plan(1, observed(pod("a"), drained("b", 600, restarts=1), b=sample(3, DRAINING)))
    assert gone.release[0].aborted is None
    blind = plan(1, observed(pod("a"), drained("b", 600)))
    assert blind.release[0].aborted is None
    assert blind.events[0].message == "Drain timed out after 600 s, an unknown number aborted: b"


def test_an_engine_that_fell_silent_is_counted_as_it_was_last_seen() -> None:
    steps = plan(1, observed(pod("a"), drained("b", 600), b=sample(3, DRAINING, age_s=90)))
    assert steps.release[0].aborted == 3
    assert steps.events[0].message == "Drain timed out after 600 s, 3 aborted, as last seen 90 s before: b"
    assert steps.events[0].reason is EventReason.DRAIN_TIMED_OUT


def test_a_crashed_pod_goes_before_a_busy_one_whatever_it_said_before_the_crash() -> None:
    looping = pod("b", ready=False, running=False, restarts=1, problem=CRASH)
    assert drains(plan(1, observed(pod("a"), looping, a=sample(3), b=sample(14, age_s=20)))) == [("b", LEAVING_COST)]
    again = pod("b", ready=False, restarts=1, problem=CRASH)
    assert drains(plan(1, observed(pod("a"), again, a=sample(3), b=sample(14, restarts=1)))) == [("b", LEAVING_COST)]


def test_the_age_at_which_a_sample_is_too_old_is_the_users() -> None:
    seen = observed(pod("a"), drained("b", 60), a=sample(1), b=sample(0, DRAINING, age_s=8))
    steps = plan_replicas(1, seen, NOW, drain_timeout_s=600, sample_max_age_s=7)
    assert steps.release == ()
    assert plan(1, seen).release != ()


def test_a_dead_container_has_nothing_to_wait_for() -> None:
    assert plan(1, observed(pod("a"), drained("b", problem=CRASH))).release[0].aborted == 0
    assert plan(1, observed(pod("a"), drained("b", started=False))).release[0].aborted == 0


def test_a_pod_taken_out_by_hand_starts_its_drain_now() -> None:
    steps = plan(1, observed(pod("a"), drained("b", drain_started=None, deletion_cost=None), b=sample(0)))
    assert drains(steps) == [("b", DRAINING_COST)]
    assert (steps.release, steps.deployment_replicas) == ((), 2)
    ahead = plan(1, observed(pod("a"), drained("b", -30), b=sample(0)))
    assert drains(ahead) == [("b", DRAINING_COST)]


def test_undraining_comes_before_a_new_pod() -> None:
    seen = observed(pod("a"), drained("b"), drained("c"), b=sample(1, DRAINING), c=sample(5, DRAINING))
    steps = plan(2, seen)
    assert [step.pod.name for step in steps.undrain] == ["c"]
    assert (steps.deployment_replicas, steps.draining) == (3, 1)
    assert [note.reason for note in steps.events] == [EventReason.UNDRAINED]
    assert plan(5, seen).deployment_replicas == 5
    assert len(plan(5, seen).undrain) == 2


def test_a_sound_pod_is_taken_back_when_one_that_serves_breaks() -> None:
    broken = pod("broken", ready=False, problem=CRASH)
    seen = observed(pod("a"), broken, drained("c"), a=sample(2), c=sample(1, DRAINING))
    steps = plan(2, seen)
    assert [step.pod.name for step in steps.undrain] == ["c"]
    assert drains(steps) == [("broken", LEAVING_COST)]
    assert steps.deployment_replicas == 2


def test_a_pod_that_is_back_and_not_yet_ready_is_not_drained_again() -> None:
    back = pod("back", ready=False)
    broken = pod("broken", ready=False, problem=CRASH)
    steps = plan(2, observed(pod("a"), broken, back, a=sample(2), back=sample(1, DRAINING)))
    assert drains(steps) == [("broken", LEAVING_COST)]
    assert steps.tell == (Tell(back, drain=False),)


def test_when_the_wrong_pod_went_the_drained_one_serves_again() -> None:
    seen = observed(pod("a"), drained("b", deletion_cost=LEAVING_COST), replicas=2, b=sample(0, DRAINING))
    steps = plan(2, seen)
    assert [step.pod.name for step in steps.undrain] == ["b"]
    assert steps.deployment_replicas == 2


def test_an_engine_that_missed_its_drain_call_is_told_again() -> None:
    waiting = drained("b", 1.0)
    steps = plan(1, observed(pod("a"), waiting, a=sample(1), b=sample(2)))
    assert steps.tell == (Tell(waiting, drain=True),)


def test_pods_that_are_gone_are_nobody() -> None:
    seen = observed(pod("a"), pod("b", terminating=True), pod("c", finished=True), replicas=1)
    assert plan(1, seen) == ReplicaPlan(1)


def test_no_drain_starts_in_a_roll_out() -> None:
    seen = observed(pod("a"), pod("b"), pod("new", ready=False), replicas=2, rollout=True)
    assert plan(2, seen) == ReplicaPlan(2)


def test_in_a_roll_out_only_a_raised_number_takes_a_pod_back() -> None:
    seen = observed(pod("a"), drained("b"), replicas=3, rollout=True, b=sample(1, DRAINING))
    assert plan(2, seen) == ReplicaPlan(3, draining=1)
    raised = plan(3, seen)
    assert [step.pod.name for step in raised.undrain] == ["b"]
    assert raised.deployment_replicas == 3


def test_an_idle_engine_that_does_not_know_that_it_drains_is_told_and_not_released() -> None:
    restarted = drained("b", 30, ready=True, restarts=1)
    steps = plan(1, observed(pod("a"), restarted, a=sample(1), b=sample(0, restarts=1)))
    assert (steps.release, steps.tell, steps.deployment_replicas) == ((), (Tell(restarted, drain=True),), 2)


def test_an_engine_without_a_drain_of_its_own_is_over_when_nothing_is_in_flight() -> None:
    """It tells no state and stays ready: its label alone keeps requests away."""
    foreign = drained("a", ready=True, foreign=True)
    idle, busy = (Sample(Load(running=running, waiting=0), NOW.monotonic_s - 0.5) for running in (0, 2))
    (release,) = plan_replicas(0, observed(foreign, a=idle), NOW, drain_timeout_s=600).release
    assert (release.pod.name, release.aborted) == ("a", 0)
    still = plan_replicas(0, observed(foreign, a=busy), NOW, drain_timeout_s=600)
    assert (still.release, still.tell, still.draining) == ((), (), 1)


def test_an_engine_that_tells_only_half_of_what_it_holds_may_hold_any_number() -> None:
    foreign = drained("a", ready=True, foreign=True)
    half = Sample(Load(running=0), NOW.monotonic_s - 0.5)
    assert plan_replicas(0, observed(foreign, a=half), NOW, drain_timeout_s=600).release == ()
    (over,) = plan_replicas(0, observed(foreign, a=half), NOW, drain_timeout_s=5).release
    assert (over.timed_out, over.aborted) == (True, None)
    serving = pod("b", foreign=True)
    steps = plan_replicas(0, observed(serving, b=half), NOW, drain_timeout_s=5)
    assert "load unknown" in steps.events[0].message
