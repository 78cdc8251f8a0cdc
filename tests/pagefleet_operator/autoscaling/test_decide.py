from dataclasses import replace

import pytest

from pagefleet_api.load import EngineState
from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.scaling import Mode
from pagefleet_operator.autoscaling import Fleet, PodLoad
from pagefleet_operator.autoscaling import decide as decide_values
from pagefleet_operator.autoscaling.policy import UP
from tests.pagefleet_operator.autoscaling.build import (
    CRASHED,
    DEFAULTS,
    SILENT,
    STARTING,
    UNPLACED,
    at,
    calm,
    decide,
    fleet,
    load,
    ready,
)

BROKEN = PodLoad("failed", True, True, load(state=EngineState.FAILED), 1.0)
STALE = ready(waiting=40, running=8, age_s=31.0)
LIAR = PodLoad("liar", True, True, load(waiting=2_000_000), 1.0)
KV_LIAR = PodLoad("kv-liar", True, True, load(kv=2.0), 1.0)
FULL = fleet(*[ready(40, 8)] * 6)
STEADY, IN_RANGE = Reason.READY_FOR_NEW_SCALE, Reason.WITHIN_RANGE
FULL_OF_NOTHING = PodLoad("kv-liar", True, True, load(waiting=40, running=8, kv=1.5), 1.0)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param(fleet(ready(12, 8)), 3, id="twenty clients on eight seats need three"),
        pytest.param(fleet(ready(4, 8)), 1, id="a queue at its target is fine"),
        pytest.param(fleet(ready(5, 8)), 2, id="a queue above its target is not"),
        pytest.param(fleet(*[ready(4, 8)] * 3, ready(1, 8)), 4, id="a sum within the tolerance moves nothing"),
        pytest.param(fleet(ready(100, 8), ready(), ready()), 6, id="never above maxReplicas"),
        pytest.param(fleet(ready(0, 2, kv=0.95)), 2, id="kv above its target asks for more"),
        pytest.param(fleet(ready(0, 8), ready(0, 7), ready(0, 5)), 3, id="an empty queue lowers nothing"),
        pytest.param(fleet(ready(0, 1), ready(0, 3), ready(0, 3)), 1, id="seven in flight fit one pod"),
        pytest.param(fleet(ready(kv=0.5), ready(kv=0.5), ready()), 2, id="kv of one pod and a third fits two"),
        pytest.param(fleet(ready(), ready(), ready()), 1, id="idle goes to the minimum"),
        pytest.param(fleet(ready(), current=0), 1, id="never below minReplicas"),
        pytest.param(fleet(ready(12, 8), UNPLACED, UNPLACED), 3, id="pods on their way answer the queue already"),
        pytest.param(fleet(ready(20, 8), UNPLACED, UNPLACED), 5, id="more rises above ready and pending"),
        pytest.param(fleet(ready(40, 8), CRASHED, SILENT), 6, id="good samples count beside silent pods"),
        pytest.param(fleet(ready(), SILENT, SILENT), 3, id="silence of two in three is no reason to shrink"),
        pytest.param(fleet(ready(), ready(), ready(), ready(), SILENT), 1, id="a silent pod counts as at target"),
        pytest.param(fleet(ready(), UNPLACED, UNPLACED), 1, id="a pod that never ran holds nothing"),
        pytest.param(fleet(ready(), STARTING, STARTING), 1, id="a starting engine that answers holds nothing"),
        pytest.param(fleet(*[SILENT] * 5), 5, id="no sample at all holds the number"),
        pytest.param(fleet(*[BROKEN] * 3), 3, id="a failed engine's numbers are not numbers"),
        pytest.param(fleet(*[STALE] * 2), 2, id="an old sample is none"),
        pytest.param(fleet(*[LIAR] * 2), 2, id="more waiting than the queue allows is missing"),
        pytest.param(fleet(*[FULL_OF_NOTHING] * 2), 6, id="kv that cannot be leaves the queue in force"),
        pytest.param(
            fleet(PodLoad("p", True, True, load(kv=2.0), 1.0), ready(), SILENT), 2, id="silent kv counts as at target"
        ),
        pytest.param(
            fleet(*[PodLoad("p", True, True, load(kv=2.0), 1.0)] * 3), 3, id="kv missing everywhere: no way down"
        ),
        pytest.param(fleet(*[KV_LIAR] * 3, current=5), 5, id="kv missing everywhere: not even down to the pods there"),
        pytest.param(fleet(ready(), ready(), ready(), rollout=True), 3, id="no way down in a roll-out"),
        pytest.param(fleet(*[ready(4, 8)] * 6, current=4, rollout=True), 6, id="a roll-out may rise"),
        pytest.param(fleet(*[ready(2, 7)] * 6, current=4, rollout=True), 4, id="surge pods do not shrink the ratio"),
        pytest.param(fleet(current=4), 4, id="no pods yet: held"),
    ],
)
def test_the_number_follows_from_the_samples(pods: Fleet, expected: int) -> None:
    assert decide(pods).desired == expected


def test_in_flight_target_works_both_ways() -> None:
    policy = replace(DEFAULTS, waiting_target=None, kv_target=None, in_flight_target=4)
    assert decide(fleet(ready(4, 8)), policy).desired == 3
    assert decide(fleet(ready(0, 2), ready(0, 2), ready()), policy).desired == 1
    assert decide(fleet(ready(0, 4), ready(0, 4), ready()), policy).desired == 2


def test_the_cache_that_queued_prompts_will_need_works_both_ways() -> None:
    policy = replace(DEFAULTS, waiting_target=None, kv_target=None, kv_demand_target=0.85)
    hungry = PodLoad("hungry", True, True, load(3, 8, kv=0.6, queued_tokens=12_000), 1.0)
    outcome = decide(fleet(hungry), policy)
    assert outcome.desired == 2
    assert outcome.decision.message == "KVCacheDemand asks for 2: 135 % over all pods, target 85 % a pod"
    assert outcome.targets == "kv demand 135/85 %"
    assert decide(fleet(hungry, ready(), ready()), policy).desired == 2
    assert decide(fleet(ready(kv=0.1), ready(kv=0.1)), policy).desired == 1
    liar = PodLoad("liar", True, True, load(kv=2.0), 1.0)
    assert decide(fleet(liar, liar, ready(), ready()), policy).desired == 2


def test_pods_on_their_way_lower_nothing_while_the_ready_ones_are_at_their_target() -> None:
    policy = replace(DEFAULTS, waiting_target=None, kv_target=None, in_flight_target=4)
    assert decide(fleet(ready(0, 4), UNPLACED, UNPLACED), policy).desired == 3
    assert decide(fleet(ready(0, 3), UNPLACED, UNPLACED), policy).desired == 1


def test_without_any_usable_target_nothing_rises() -> None:
    policy = replace(DEFAULTS, waiting_target=None, kv_target=None)
    assert decide(fleet(ready(40, 8)), policy).desired == 1


def test_one_seat_a_pod_holds_one_request() -> None:
    policy = replace(DEFAULTS, max_num_seqs=1)
    assert decide(fleet(ready(0, 1), ready()), policy).desired == 1


def test_the_first_decision_starts_from_the_minimum() -> None:
    outcome = decide_values(replace(DEFAULTS, min_replicas=2), Fleet(None), None, at(0))
    assert (outcome.desired, outcome.event) == (2, None)


def test_nothing_goes_down_for_one_window_after_a_restart() -> None:
    pods = fleet(*[ready()] * 5)
    outcome = decide_values(DEFAULTS, pods, None, at(0))
    for now_s in range(0, 300, 2):
        outcome = decide_values(DEFAULTS, pods, outcome.memory, at(now_s))
        assert outcome.desired == 5
    assert decide_values(DEFAULTS, pods, outcome.memory, at(300)).desired == 1


def test_a_restart_is_not_told_as_stale_metrics_until_samples_had_their_time() -> None:
    first = decide_values(DEFAULTS, fleet(SILENT), None, at(0))
    later = decide_values(DEFAULTS, fleet(SILENT), first.memory, at(29))
    stale = decide_values(DEFAULTS, fleet(SILENT), later.memory, at(30))
    assert [(one.active.status, one.active.reason) for one in (first, later, stale)] == [
        (True, Reason.WAITING_FOR_METRICS),
        (True, Reason.WAITING_FOR_METRICS),
        (False, Reason.METRICS_STALE),
    ]


def test_a_dip_shorter_than_the_down_window_changes_nothing() -> None:
    memory = decide_values(DEFAULTS, fleet(*[ready(0, 7)] * 3), calm(3), at(0)).memory
    for now_s, running in ((100, 0), (200, 7), (290, 0), (450, 0)):
        outcome = decide_values(DEFAULTS, fleet(*[ready(0, running)] * 3), memory, at(now_s))
        memory = outcome.memory
        assert outcome.desired == 3
    assert outcome.able.reason is Reason.STABILIZED
    assert outcome.decision.clamps == ("Stabilized: 1 → 3, the highest answer of the last 300 s",)


def test_swinging_answers_do_not_make_the_reasons_swing() -> None:
    memory, reasons = calm(3), []
    for now_s, running in ((0, 7), (2, 0), (4, 7), (6, 0), (8, 7), (70, 7)):
        outcome = decide_values(DEFAULTS, fleet(*[ready(0, running)] * 3), memory, at(now_s))
        memory = outcome.memory
        reasons.append((outcome.decision.reason, outcome.able.reason))
    quiet, held = ("Steady", STEADY), ("Stabilized", Reason.STABILIZED)
    assert reasons == [quiet, held, held, held, held, quiet]


def test_a_change_ends_what_is_said_of_answers_held_back() -> None:
    memory = decide_values(DEFAULTS, fleet(ready(0, 7), ready(0, 7)), calm(2), at(0)).memory
    memory = decide_values(DEFAULTS, fleet(ready(), ready()), memory, at(2)).memory
    risen = decide_values(DEFAULTS, fleet(ready(9, 8), ready(0, 8)), memory, at(4))
    assert (risen.desired, risen.decision.reason) == (3, "WaitingRequests")
    steady = decide_values(DEFAULTS, fleet(ready(0, 8), ready(0, 8), ready(0, 8)), risen.memory, at(6))
    assert steady.decision.reason == "Steady"


def test_a_peak_shorter_than_the_up_window_changes_nothing() -> None:
    policy = replace(DEFAULTS, up=replace(UP, window_s=30))
    memory = decide_values(policy, fleet(ready()), calm(1), at(0)).memory
    outcome = decide_values(policy, fleet(ready(12, 8)), memory, at(10))
    assert outcome.desired == 1
    assert outcome.decision.clamps == ("Stabilized: 3 → 1, the lowest answer of the last 30 s",)
    assert decide_values(policy, fleet(ready(12, 8)), outcome.memory, at(31)).desired == 3


def test_a_rise_says_which_metric_asked() -> None:
    outcome = decide(fleet(ready(12, 8, kv=0.4)))
    decision = outcome.decision
    assert decision.reason == "WaitingRequests"
    assert decision.message == "WaitingRequests asks for 3: 12 over all pods, target 4 a pod"
    assert [(one.type, one.value, one.target, one.proposal) for one in decision.readings] == [
        ("WaitingRequests", "12", "4", 3),
        ("KVCacheUsage", "40 %", "75 %", 1),
    ]
    assert (decision.before, decision.desired, decision.pods_seen, decision.pods_missing) == (1, 3, 1, 0)
    assert decision.time == "2026-01-01T00:00:00Z"
    assert outcome.event is not None
    assert outcome.event.reason is EventReason.SCALED_UP
    assert outcome.event.message.startswith("Scaled from 1 to 3: WaitingRequests asks for 3")
    assert outcome.targets == "queue 12/4, kv 40/75 %"
    assert outcome.active.reason is Reason.VALID_METRICS
    assert outcome.limited.reason is Reason.WITHIN_RANGE


def test_a_fall_says_what_fits() -> None:
    outcome = decide(fleet(ready(0, 1), ready(0, 2), ready()))
    assert outcome.decision.reason == "LoadFitsFewer"
    assert outcome.decision.message == (
        "3 in flight and 0 % of one pod's KV fit 1 (at 7.2 in flight and 75 % KV a pod)"
    )
    assert outcome.event is not None and outcome.event.reason is EventReason.SCALED_DOWN


def test_steady_load_has_a_steady_decision() -> None:
    outcome = decide(fleet(ready(0, 3)))
    assert (outcome.decision.reason, outcome.event, outcome.decision.clamps) == ("Steady", None, ())
    assert outcome.able.reason is Reason.READY_FOR_NEW_SCALE
    assert not outcome.watch_closely


@pytest.mark.parametrize(
    ("pods", "active", "able", "limited"),
    [
        (fleet(*[SILENT] * 2), Reason.METRICS_STALE, STEADY, IN_RANGE),
        (fleet(UNPLACED), Reason.WAITING_FOR_METRICS, Reason.PENDING_PODS, IN_RANGE),
        (fleet(ready(), SILENT, SILENT), Reason.METRICS_PARTIAL, STEADY, IN_RANGE),
        (fleet(ready(), ready(), rollout=True), Reason.VALID_METRICS, Reason.ROLLOUT_IN_PROGRESS, IN_RANGE),
        (fleet(ready(12, 8), UNPLACED, UNPLACED), Reason.VALID_METRICS, Reason.PENDING_PODS, IN_RANGE),
        (FULL, Reason.VALID_METRICS, STEADY, Reason.TOO_MANY_REPLICAS),
        (fleet(SILENT, current=9), Reason.METRICS_STALE, Reason.PENDING_PODS, Reason.TOO_MANY_REPLICAS),
    ],
)
def test_conditions_say_what_holds_the_number(pods: Fleet, active: Reason, able: Reason, limited: Reason) -> None:
    outcome = decide(pods)
    assert (outcome.active.reason, outcome.able.reason, outcome.limited.reason) == (active, able, limited)
    assert outcome.active.status is (active not in {Reason.METRICS_STALE, Reason.WAITING_FOR_METRICS})


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        (fleet(*[SILENT] * 2), "MetricsStale"),
        (fleet(UNPLACED), "WaitingForMetrics"),
        (fleet(ready(), SILENT, SILENT), "MetricsPartial"),
        (fleet(ready(), ready(), rollout=True), "RolloutInProgress"),
        (fleet(ready(12, 8), UNPLACED, UNPLACED), "PendingPods"),
        (FULL, "TooManyReplicas"),
        (fleet(*[KV_LIAR] * 2), "MetricsPartial"),
        (fleet(SILENT, current=9), "TooManyReplicas"),
        (fleet(ready(), current=0), "TooFewReplicas"),
    ],
)
def test_a_decision_gives_the_step_that_settled_it_as_reason(pods: Fleet, reason: str) -> None:
    assert decide(pods).decision.reason == reason


def test_without_any_sample_for_five_minutes_the_fallback_is_a_floor() -> None:
    policy = replace(DEFAULTS, fallback_replicas=4)
    outcome = decide_values(policy, fleet(SILENT, SILENT), calm(2), at(2))
    for now_s in (100, 301):
        outcome = decide_values(policy, fleet(SILENT, SILENT), replace(outcome.memory, answers=()), at(now_s))
        assert (outcome.desired, outcome.decision.reason) == (2, "MetricsStale")
    outcome = decide_values(policy, fleet(SILENT, SILENT), outcome.memory, at(302))
    assert (outcome.desired, outcome.decision.reason) == (4, "FallbackReplicas")
    assert outcome.decision.message == "2 → 4, no pod gave a sample for 5 min, missingMetrics.fallbackReplicas is 4"
    assert outcome.active.reason is Reason.METRICS_STALE
    seen = decide_values(policy, fleet(ready(), *[SILENT] * 3), outcome.memory, at(304))
    assert (seen.desired, seen.memory.blind_since_s) == (4, None)


def test_pods_that_never_became_ready_are_no_reason_for_the_fallback() -> None:
    policy = replace(DEFAULTS, fallback_replicas=4)
    first = decide_values(policy, fleet(CRASHED), calm(1), at(0))
    assert decide_values(policy, fleet(CRASHED), first.memory, at(900)).desired == 1


def test_one_lost_sample_in_ten_changes_no_condition() -> None:
    memory, said = calm(1), set()
    for number in range(900):
        age_s = 4.0 if number % 10 == 0 else 1.0
        outcome = decide_values(DEFAULTS, fleet(ready(0, 3, age_s=age_s)), memory, at(2.0 * number))
        memory = outcome.memory
        said.add((outcome.active.status, outcome.active.reason, outcome.able.reason, outcome.limited.reason))
    assert said == {(True, Reason.VALID_METRICS, STEADY, IN_RANGE)}


def test_a_recommendation_is_told_as_one() -> None:
    policy = replace(DEFAULTS, mode=Mode.RECOMMEND)
    outcome = decide(fleet(ready(12, 8)), policy)
    assert (outcome.desired, outcome.acts) == (3, False)
    assert (outcome.able.status, outcome.able.reason) == (False, Reason.RECOMMEND_ONLY)
    assert outcome.able.message == "autoscaling.mode is Recommend: 3 would serve, spec.replicas is the number"
    assert outcome.event is not None and outcome.event.reason is EventReason.RECOMMENDED
    assert outcome.event.message.startswith("Would scale from 1 to 3: WaitingRequests asks for 3")
    again = decide_values(policy, fleet(ready(12, 8)), outcome.memory, at(2))
    assert (again.desired, again.event, again.decision.clamps) == (3, None, ())


def test_the_minimum_is_a_limit_as_well() -> None:
    policy = replace(DEFAULTS, min_replicas=2)
    outcome = decide(fleet(ready(), ready()), policy)
    assert (outcome.desired, outcome.limited.reason) == (2, Reason.TOO_FEW_REPLICAS)
    assert outcome.limited.message == "the answer is held at minReplicas 2"
    assert outcome.decision.clamps == ("TooFewReplicas: 1 → 2, minReplicas is 2",)


def test_a_load_that_fewer_pods_queued_under_keeps_its_number_for_an_hour() -> None:
    raised = decide(fleet(ready(9, 3), ready(0, 2)))
    assert raised.desired == 3
    same = fleet(ready(0, 7), ready(0, 7), ready(0, 0))
    held = decide_values(DEFAULTS, same, replace(raised.memory, desired=4, answers=()), at(3599))
    assert held.desired == 3
    assert held.decision.clamps == ("FewerQueued: 2 → 3, fewer were too few for this load before",)
    assert decide_values(DEFAULTS, same, replace(raised.memory, answers=()), at(3600)).desired == 2
    less = fleet(ready(0, 7), ready(), ready())
    assert decide_values(DEFAULTS, less, replace(raised.memory, answers=()), at(10)).desired == 1


def test_what_queued_under_another_policy_proves_nothing() -> None:
    raised = decide(fleet(ready(9, 3), ready(0, 2)))
    same, memory = fleet(ready(0, 7), ready(0, 7), ready(0, 0)), replace(raised.memory, answers=())
    assert decide_values(DEFAULTS, same, memory, at(10)).desired == 3
    patient = replace(DEFAULTS, waiting_target=100)
    assert decide_values(patient, same, memory, at(10)).desired == 2


def test_a_missing_metric_is_shown_as_unknown() -> None:
    policy = replace(DEFAULTS, in_flight_target=6)
    outcome = decide(fleet(SILENT), policy)
    assert outcome.targets == "queue ?/4, kv ?/75 %, in flight ?/6"
    assert {one.value for one in outcome.decision.readings} == {None}
    assert outcome.oldest_sample_age_s is None


def test_load_near_a_target_is_watched_closely() -> None:
    assert decide(fleet(ready(2, 3))).watch_closely
    assert decide(fleet(ready(0, 6))).watch_closely
    assert decide(fleet(SILENT)).watch_closely
    assert decide(fleet(ready(), UNPLACED)).watch_closely
