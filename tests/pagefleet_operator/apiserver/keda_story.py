"""KEDA's own operator and metrics server scale a service by our external scaler.

Outside of `make test` for the minutes that its build takes: `make test-keda`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.box import Box
from tests.pagefleet_operator.apiserver import aggregation, keda_programs
from tests.pagefleet_operator.apiserver.aggregation import served
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import free_block
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service
from tests.ports import free_port

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(1800)]

NAMESPACE = "scaled"
SCALED_OBJECTS = keda_programs.SCALED_OBJECTS.format(NAMESPACE)
WAIT_S = 90.0
"""For what takes some ten seconds on an idle machine: KEDA and the HorizontalPodAutoscaler look at it in turn."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with aggregation.control_plane(tmp_path_factory.mktemp("aggregation"), free_block(), NAMESPACE) as box:
        yield box


@pytest.fixture(scope="module")
def keda(plane: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with keda_programs.running(plane, tmp_path_factory.mktemp("keda")) as logs:
        yield logs


@pytest.fixture(scope="module")
def scaler(plane: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, OperatorProcess]]:
    """Where our external scaler listens, and the operator that it is part of."""
    address, log = f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("operator") / "log"
    running = aggregation.operator(plane, NAMESPACE, free_port(), log, f"--keda-scaler={address}").ready()
    yield address, running
    running.stop()


def scaled_object(name: str, trigger: str, address: str) -> Json:
    """As docs/external-scaling.md has it, without waiting on the way down."""
    target = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "InferenceService", "name": name}
    metadata = {"scalerAddress": address, "inferenceService": name}
    metadata |= {"metric": "pagefleet_in_flight_requests", "target": "3"}
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": target,
            "pollingInterval": 1,
            "minReplicaCount": 1,
            "maxReplicaCount": 4,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": [{"type": trigger, "metadata": metadata}],
        },
    }


def conditions(api: Api, name: str) -> dict[str, str]:
    """What KEDA says of a ScaledObject."""
    found = served(api, f"{SCALED_OBJECTS}/{name}") or {}
    return {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}


@pytest.mark.parametrize("trigger", ["external", "external-push"])
def test_keda_scales_a_service_up_and_down_and_holds_it_while_no_pod_tells(
    plane: Box, keda: Path, scaler: tuple[str, OperatorProcess], trigger: str
) -> None:
    api, (address, operator) = Api(plane.kubeconfig), scaler
    with Fleet(api, NAMESPACE) as fleet:

        def serving(clients: int) -> int:
            fleet.share(clients)
            return len(fleet.serving())

        api.create("inferenceservices", service(NAMESPACE, trigger, autoscaling={"mode": "External"}))
        eventually(lambda: len(fleet.serving()) == 1, "one pod serves", WAIT_S)
        api.call("POST", SCALED_OBJECTS, scaled_object(trigger, trigger, address))
        eventually(lambda: conditions(api, trigger).get("Ready") == "True", f"KEDA takes it up, see {keda}", WAIT_S)
        eventually(lambda: serving(8) == 3, f"the number is what 8 requests ask for, see {keda}", WAIT_S)
        eventually(lambda: conditions(api, trigger).get("Active") == "True", "KEDA says that it is active", WAIT_S)

        def told(clients: int) -> tuple[str, int]:
            fleet.share(clients)
            status = (api.get("inferenceservices", NAMESPACE, trigger) or {})["status"]
            scaling = next(each for each in status["conditions"] if each["type"] == "ScalingActive")
            return scaling["reason"], status["replicas"]

        eventually(lambda: told(8) == ("ExternallyScaled", 3), f"the status tells it, see {keda}", WAIT_S)
        for engine in fleet.engines.values():
            engine.status = 503
        never(lambda: len(fleet.pods()) != 3, "silent pods moved the number", 12)
        for engine in fleet.engines.values():
            engine.status = 200
        eventually(lambda: serving(0) == 1 == len(fleet.pods()), "the number follows the load down", WAIT_S)
        eventually(lambda: conditions(api, trigger).get("Active") == "False", "KEDA says that it rests", WAIT_S)
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0
        api.call("DELETE", f"{SCALED_OBJECTS}/{trigger}")
        api.delete("inferenceservices", NAMESPACE, trigger)
        eventually(lambda: not fleet.pods(), "its pods are gone", WAIT_S)
