from typing import Any

from pagefleet_api.service import InferenceService
from pagefleet_operator.autoscaling import Fleet, Policy
from pagefleet_operator.observed import LEAVING_COST, DeploymentView, Observed, Pod, Sample
from tests.pagefleet_operator.autoscaling.build import at, load


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
        up_window_s=0,
        down_window_s=300,
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
                ],
                "behavior": {
                    "scaleUp": {"stabilizationWindowSeconds": 5},
                    "scaleDown": {"stabilizationWindowSeconds": 0},
                },
                "missingMetrics": {"maxAgeSeconds": 7, "minCoverage": "0.8"},
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
        up_window_s=5,
        down_window_s=0,
        max_age_s=7,
        min_coverage=0.8,
    )


def test_a_fleet_is_the_serving_pods_and_the_number_without_those_that_drain() -> None:
    observed = Observed(
        deployment=DeploymentView(name="b", replicas=4),
        pods=(
            Pod(name="a", uid="a", ready=True, started=True),
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
