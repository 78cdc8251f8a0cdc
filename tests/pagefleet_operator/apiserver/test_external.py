"""A number that others set through /scale is followed, with drains, and the status says who set it."""

from typing import Any

import grpc
import pytest

from pagefleet_operator.keda.serving import SERVICE
from pagefleet_operator.keda.wire import externalscaler_pb2 as pb
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import service
from tests.ports import free_port

pytestmark = pytest.mark.apiserver


def _status(api: Api, namespace: str) -> Json:
    found: Json = (api.get("inferenceservices", namespace, "s") or {}).get("status", {})
    return found


def _active(api: Api, namespace: str) -> tuple[str, str]:
    conditions = _status(api, namespace).get("conditions", [])
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == "ScalingActive"), ("", ""))


def _in_flight(port: int, namespace: str) -> float:
    metadata = {"inferenceService": "s", "metric": "pagefleet_in_flight_requests", "target": "4"}
    request = pb.GetMetricsRequest(scaledObjectRef=pb.ScaledObjectRef(namespace=namespace, scalerMetadata=metadata))
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/GetMetrics", pb.GetMetricsRequest.SerializeToString, pb.GetMetricsResponse.FromString
        )
        answer: Any = call(request, timeout=5)
    return float(sum(value.metricValueFloat for value in answer.metricValues))


def _scale(api: Api, namespace: str, replicas: int) -> None:
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": replicas}}, "scale")


def test_the_number_of_others_is_followed_with_drains_and_the_status_says_whose_it_is(
    api: Api, namespace: str, start: Start
) -> None:
    port = free_port()
    operator = start(flags=("--namespace", namespace, "--keda-scaler", f"127.0.0.1:{port}")).ready()
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", service(namespace, autoscaling={"mode": "External"}), strict=True)
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves")
        eventually(lambda: _active(api, namespace)[0] == "AwaitsScaler", "nobody has scaled it")
        _scale(api, namespace, 2)
        eventually(lambda: len(fleet.serving()) == 2, "two pods serve")
        words = "somebody set spec.replicas to 2 through /scale"
        eventually(lambda: _active(api, namespace) == ("ExternallyScaled", words), "it is said who did")
        fleet.set_load(running=8, waiting=4)
        never(lambda: len(fleet.pods()) != 2, "the load moved a number that others set", 2)
        assert _in_flight(port, namespace) == 24, "both pods as KEDA reads them"
        _scale(api, namespace, 1)
        eventually(lambda: len(fleet.serving()) == 1, "one of them leaves")
        never(lambda: len(fleet.pods()) != 2, "a busy pod was taken", 2)
        fleet.set_load()
        eventually(lambda: len(fleet.pods()) == 1, "it goes when its answers are out", 20)
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0
        history = _status(api, namespace)["autoscaling"]["history"]
        assert [(each["before"], each["desired"]) for each in history] == [(2, 1), (1, 2)]
        assert operator.writes() < 60
