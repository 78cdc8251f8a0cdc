from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api.behavior import RateUnit, SelectPolicy
from pagefleet_api.scaling import Mode
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator.autoscaling import Fleet, PodLoad, Policy, decide
from pagefleet_operator.autoscaling.policy import DOWN, Rate, Rules
from pagefleet_operator.facts.observed import LEAVING_COST, DeploymentView, Observed, Pod, Sample
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, at, calm, load


def service(autoscaling: dict[str, Any] | None) -> InferenceService:
    spec: dict[str, Any] = {"model": {"uri": "pkg://m"}, "engine": {"maxNumSeqs": 8, "maxQueuedRequests": 64}}
    spec |= {} if autoscaling is None else {"autoscaling": autoscaling}
    return InferenceService.parse({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": spec})


def test_fixed_replicas_have_no_policy() -> None:
    assert Policy.of(service(None)) is None


def test_defaults_are_those_that_are_written_down() -> None:
    assert Policy.of(service({"maxReplicas": 6})) == Policy(
        min_replicas=1,
        max_replicas=6,
        waiting_target=4,
        kv_target=0.75,
        max_num_seqs=8,
        max_queued_requests=64,
        max_age_s=30,
        min_coverage=0.5,
    )


def test_every_field_of_the_spec_reaches_the_policy() -> None:
    policy = Policy.of(
        service(
            {
                "minReplicas": 2,
                "maxReplicas": 9,
                "metrics": [
                    {"type": "InFlightRequests", "target": {"averageValue": "500m"}},
                    {"type": "WaitingRequests", "target": {"averageValue": 2}},
                    {"type": "KVCacheDemand", "target": {"averageUtilization": 120}},
                    {"type": "TimeToFirstToken", "target": {"p95": "500ms"}},
                ],
                "behavior": {
                    "scaleUp": {
                        "stabilizationWindowSeconds": 5,
                        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
                        "selectPolicy": "Min",
                        "tolerance": "0",
                    },
                    "scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": 0.05},
                },
                "mode": "Recommend",
                "lookahead": "1m30s",
                "spareReplicas": 1,
                "priority": -5,
                "missingMetrics": {"maxAgeSeconds": 7, "minCoverage": "0.8", "fallbackReplicas": 3},
            }
        )
    )
    assert policy == Policy(
        min_replicas=2,
        max_replicas=9,
        in_flight_target=0.5,
        waiting_target=2,
        max_num_seqs=8,
        max_queued_requests=64,
        mode=Mode.RECOMMEND,
        kv_demand_target=1.2,
        up=Rules(window_s=5, rates=(Rate(RateUnit.PODS, 2, 60),), select=SelectPolicy.MIN, tolerance=0),
        down=replace(DOWN, window_s=0, tolerance=0.05),
        fallback_replicas=3,
        ttft_target_s=0.5,
        lookahead_s=90,
        spare_replicas=1,
        priority=-5,
        max_age_s=7,
        min_coverage=0.8,
    )


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("WaitingRequests", {}),
        ("InFlightRequests", {"averageUtilization": 75}),
        ("KVCacheUsage", {"averageValue": "4"}),
        ("KVCacheUsage", {"averageValue": "4", "averageUtilization": 75}),
        ("KVCacheDemand", {"averageValue": "4"}),
    ],
)
def test_a_metric_without_the_target_of_its_type_is_refused_and_not_left_out(kind: str, target: dict[str, Any]) -> None:
    with pytest.raises(InvalidService, match=f"{kind} takes target"):
        service({"maxReplicas": 6, "metrics": [{"type": kind, "target": target}]})


@pytest.mark.parametrize(("given", "seconds"), [("Auto", None), ("None", 0.0), ("2m", 120.0)])
def test_the_lookahead_is_measured_fixed_or_none(given: str, seconds: float | None) -> None:
    policy = Policy.of(service({"maxReplicas": 6, "lookahead": given}))
    assert policy is not None and policy.lookahead_s == seconds


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"lookahead": "soon"}, "spec.autoscaling.lookahead"),
        ({"metrics": [{"type": "TimeToFirstToken", "target": {"p95": "0s"}}]}, "target.p95 must be between 1ms and 1h"),
        ({"metrics": [{"type": "TimeToFirstToken", "target": {"averageValue": 1}}]}, "takes target.p95"),
    ],
)
def test_times_that_cannot_be_used_are_refused(scaling: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        service({"maxReplicas": 6, **scaling})
    assert words in str(refusal.value)


def test_a_cache_that_would_have_to_be_fuller_than_full_is_refused() -> None:
    with pytest.raises(
        InvalidService, match=r"KVCacheUsage never passes 100 percent, .* 101 never asks for pods; use KVCacheDemand"
    ):
        service({"maxReplicas": 6, "metrics": [{"type": "KVCacheUsage", "target": {"averageUtilization": 101}}]})


def test_a_fleet_is_the_serving_pods_and_the_number_without_those_that_drain() -> None:
    observed = Observed(
        deployment=DeploymentView(name="b", replicas=4),
        pods=(
            Pod(name="a", uid="a", ready=True, started=True, running=True),
            Pod(name="silent", uid="silent", started=True),
            Pod(name="draining", uid="d", serving=False, deletion_cost=-1000),
            Pod(name="left", uid="l", serving=False, deletion_cost=LEAVING_COST),
            Pod(name="gone", uid="g", terminating=True),
        ),
        samples={"a": Sample(load(2, 3), at(-5).monotonic_s), "d": Sample(load(9, 9), 0.0)},
    )
    fleet = Fleet.of(observed, at(0))
    assert fleet.current == 3
    assert [(pod.name, pod.ready, pod.age_s) for pod in fleet.pods] == [("a", True, 5.0), ("silent", False, None)]
    assert Fleet.of(Observed(), at(0)) == Fleet(None)


def test_what_a_crashed_container_said_is_missing() -> None:
    looping = Pod(name="a", uid="a", started=True, restarts=1)
    seen = Observed(DeploymentView(name="b"), (looping,), {"a": Sample(load(40, 8), at(-5).monotonic_s)})
    assert Fleet.of(seen, at(0)).pods == (PodLoad("a", False, True),)


@pytest.mark.parametrize(("lost_s", "desired"), [(60, 3), (300, 3), (301, 1)])
def test_what_crashed_pods_held_is_waited_for_five_minutes_and_then_they_hold_no_number(
    lost_s: float, desired: int
) -> None:
    """Two of three crash and crash, and nobody asks for anything any more."""
    lost = at(-lost_s).wall
    looping = [Pod(name=name, uid=name, started=True, restarts=4, crashed_since=lost) for name in ("b", "c")]
    sound = Pod(name="a", uid="a", ready=True, started=True, running=True)
    seen = Observed(DeploymentView(name="s", replicas=3), (sound, *looping), {"a": Sample(load(), 1000.0)})
    policy = replace(DEFAULTS, down=replace(DOWN, window_s=0))
    outcome = decide(policy, Fleet.of(seen, at(0)), calm(3), at(0))
    assert outcome.desired == desired, outcome.decision


@pytest.mark.parametrize(
    ("replicas", "reported", "expected"),
    [
        pytest.param(3, 2, 2, id="a drain ended and the number is not lowered yet"),
        pytest.param(2, 2, 2, id="the number is lowered and the pod not gone yet"),
        pytest.param(3, None, 3, id="nothing was ever reported"),
        pytest.param(3, 9, 3, id="a report from long ago"),
        pytest.param(3, 0, 2, id="a report from before"),
        pytest.param(0, None, 0, id="paused"),
    ],
)
def test_a_leaving_pod_is_not_asked_for_again_after_a_restart(
    replicas: int, reported: int | None, expected: int
) -> None:
    leaving = Pod(name="c", uid="c", serving=False, deletion_cost=LEAVING_COST)
    seen = Observed(DeploymentView(name="b", replicas=replicas), (Pod(name="a", uid="a"), leaving))
    assert Fleet.of(seen, at(0), reported=reported).current == expected


def test_only_two_templates_are_a_roll_out_to_the_autoscaler() -> None:
    lagging = DeploymentView(name="b", generation=2, observed_generation=1)
    assert not Fleet.of(Observed(lagging), at(0)).rollout_in_progress
    assert Fleet.of(Observed(DeploymentView(name="b", total=2, updated=1)), at(0)).rollout_in_progress
