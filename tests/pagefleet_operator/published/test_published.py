"""What others' autoscalers are told of a service's load, and what is said where they decide."""

from dataclasses import replace
from typing import Any

import pytest

from pagefleet_api.custom_metrics import MEANINGS, CustomMetric
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_api.status import AutoscalingStatus, Status
from pagefleet_operator import published
from pagefleet_operator.autoscaling import Policy
from pagefleet_operator.facts.observed import DeploymentView, Observed, Pod, Sample
from tests.pagefleet_operator.autoscaling.build import at, load
from tests.pagefleet_operator.status import build
from tests.pagefleet_operator.status.build import condition

WAITING, IN_FLIGHT, KV = CustomMetric.WAITING, CustomMetric.IN_FLIGHT, CustomMetric.KV_USAGE


def pod(name: str, **more: Any) -> Pod:
    return Pod(name=name, uid=name, **{"ready": True, "started": True, "running": True, **more})


def seen(*pods: Pod, loads: dict[str, tuple[int, int, float]], age_s: float = 2) -> Observed:
    taken_s = at(100).monotonic_s - age_s
    samples = {name: Sample(load(waiting, running, kv), taken_s) for name, (waiting, running, kv) in loads.items()}
    return Observed(DeploymentView(name="d", replicas=len(pods)), pods, samples)


def external(**meta: Any) -> InferenceService:
    body = {"namespace": "n", "name": "s", "uid": "u", **meta}
    spec = {"model": {"uri": "pkg://m"}, "engine": {"maxNumSeqs": 8}, "replicas": 3}
    return InferenceService.parse({"metadata": body, "spec": {**spec, "autoscaling": {"mode": "External"}}})


def scaled(manager: str, time: str, subresource: str = "scale") -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "subresource": subresource, "time": time}


def test_a_service_is_the_sum_of_its_pods() -> None:
    observed = seen(pod("a"), pod("b"), loads={"a": (2, 8, 0.5), "b": (0, 4, 0.25)})
    reading = published.of_service(external(), observed, at(100))
    assert reading.values == {WAITING: 2, IN_FLIGHT: 14, KV: 0.75, CustomMetric.KV_DEMAND: 0.75}
    assert reading.when == at(98).wall
    assert {
        name: each.values[IN_FLIGHT] for name, each in published.of_pods(external(), observed, at(100)).items()
    } == {
        "a": 10,
        "b": 4,
    }
    assert set(MEANINGS) == set(CustomMetric)


def test_a_silent_pod_moves_no_average_and_is_never_zero() -> None:
    observed = seen(pod("a"), pod("b"), loads={"a": (2, 8, 0.5)})
    assert published.of_service(external(), observed, at(100)).values[IN_FLIGHT] == 20
    assert set(published.of_pods(external(), observed, at(100))) == {"a"}


def test_less_than_half_of_the_pods_say_nothing_of_the_whole() -> None:
    observed = seen(pod("a"), pod("b"), pod("c"), loads={"a": (2, 8, 0.5)})
    assert published.of_service(external(), observed, at(100)).values == {}
    assert published.of_service(external(), seen(loads={}), at(100)) == ({}, at(100).wall)


def test_old_samples_are_missing_and_pods_on_their_way_in_or_out_add_nothing() -> None:
    starting, draining = pod("b", ready=False, started=False, running=False), pod("c", serving=False)
    loads = {"a": (0, 4, 0.5), "c": (0, 3, 0.5)}
    observed = seen(pod("a"), starting, draining, loads=loads)
    assert published.of_service(external(), observed, at(100)).values[IN_FLIGHT] == 4
    assert published.of_pods(external(), seen(pod("a"), loads=loads, age_s=31), at(100)) == {}


def test_the_words_have_the_mean_of_a_pod_and_no_target() -> None:
    observed = seen(pod("a"), pod("b"), loads={"a": (2, 8, 0.5), "b": (1, 4, 0.25)})
    assert published.words(external(), observed, at(100)) == "queue 1.5, in flight 7.5, kv 38 %"
    assert published.words(external(), seen(loads={}), at(100)) == "queue ?, in flight ?"


def test_others_decide_so_the_policy_is_none_and_every_other_field_is_refused() -> None:
    assert Policy.of(external()) is None
    assert not external().spec.decides
    fields: tuple[dict[str, Any], ...] = ({"maxReplicas": 3}, {"minReplicas": 1}, {"behavior": {}}, {"priority": 3})
    for field in fields:
        with pytest.raises(InvalidService, match=r"mode External: whoever writes spec\.replicas through /scale"):
            body = {"metadata": {"namespace": "n", "name": "s", "uid": "u"}}
            spec = {"model": {"uri": "pkg://m"}, "autoscaling": {"mode": "External", **field}}
            InferenceService.parse({**body, "spec": spec})


def test_the_status_says_who_scales_and_what_they_could_see() -> None:
    managed = [scaled("kubectl", "2026-01-01T00:00:00Z"), scaled("kube-controller-manager", "2026-01-01T00:01:00Z")]
    service = external(managedFields=[*managed, scaled("pagefleet", "2026-01-02T00:00:00Z", "status")])
    observed = seen(pod("a"), pod("b"), loads={"a": (2, 8, 0.5)})
    found = build.status(observed, 3, of=service, now=at(100))
    active = condition(found, "ScalingActive")
    assert active is not None
    assert (active.status, active.reason) == ("True", "ExternallyScaled")
    assert active.message == "kube-controller-manager set spec.replicas to 3 through /scale"
    assert found.targets == "queue 2, in flight 10, kv 50 %"
    assert found.autoscaling is not None and found.autoscaling.last_decision is not None
    decision = found.autoscaling.last_decision
    assert (decision.desired, decision.reason, decision.pods_seen, decision.pods_missing) == (3, active.reason, 1, 1)
    assert found.autoscaling.history == ()


def test_a_number_that_changed_is_kept_in_the_history() -> None:
    previous = Status(autoscaling=AutoscalingStatus(desired_replicas=1))
    found = build.status(seen(loads={}), 3, of=external(), previous=previous, now=at(100))
    assert found.autoscaling is not None and found.autoscaling.last_scale_time is not None
    assert [(each.before, each.desired, each.reason) for each in found.autoscaling.history] == [(1, 3, "AwaitsScaler")]


def test_nobody_has_scaled_yet() -> None:
    active = condition(build.status(seen(loads={}), 3, of=external()), "ScalingActive")
    assert active is not None
    assert (active.status, active.reason) == ("Unknown", "AwaitsScaler")


def test_a_foreign_engine_that_tells_no_kv_has_no_such_metric() -> None:
    observed = seen(pod("a"), loads={"a": (2, 8, 0.5)})
    bare = Sample(load(2, 8).model_copy(update={"blocks_used": None, "blocks_total": None}), at(98).monotonic_s)
    reading = published.of_service(external(), replace(observed, samples={"a": bare}), at(100))
    assert set(reading.values) == {WAITING, IN_FLIGHT}


def test_an_api_of_metrics_that_is_refused_is_told_where_somebody_looks_for_the_scaler() -> None:
    refusal = "APIService v1beta2.custom.metrics.k8s.io belongs to team/adapter, not to n/x-api: left alone"
    for service in (external(), external(managedFields=[scaled("kubectl", "2026-01-01T00:00:00Z")])):
        active = condition(build.status(seen(loads={}), 3, of=service, unserved=refusal), "ScalingActive")
        assert active is not None
        assert active.message.endswith(f"; a HorizontalPodAutoscaler cannot read the operator's metrics: {refusal}")
