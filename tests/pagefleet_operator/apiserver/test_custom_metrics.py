"""A real HorizontalPodAutoscaler scales a service by the metrics that the operator serves through the aggregator."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.box import Box
from pagefleet_api import labels
from pagefleet_api.custom_metrics import API_SERVICE, CustomMetric
from tests.pagefleet_operator.apiserver import aggregation
from tests.pagefleet_operator.apiserver.accounts import account
from tests.pagefleet_operator.apiserver.aggregation import API_SERVICES, METRICS, served
from tests.pagefleet_operator.apiserver.api import Api, ApiRefusal, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import free_block
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service
from tests.ports import free_port

pytestmark = pytest.mark.apiserver

NAMESPACE = "scaled"
OBJECTS = f"{METRICS}/namespaces/{NAMESPACE}/inferenceservices.pagefleet.io"
PODS = f"{METRICS}/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with aggregation.control_plane(tmp_path_factory.mktemp("aggregation"), free_block(), NAMESPACE) as box:
        yield box


@pytest.fixture(scope="module")
def port(plane: Box) -> int:
    """Where the metrics are served; their APIService is registered."""
    number = free_port()
    aggregation.register(Api(plane.kubeconfig), NAMESPACE, "x-api", number)
    return number


@pytest.fixture(scope="module")
def operator(plane: Box, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    flag = f"--custom-metrics=127.0.0.1:{port}"
    running = aggregation.operator(plane, NAMESPACE, free_port(), log, flag).ready()
    yield running
    running.stop()


def _value(api: Api, path: str) -> str | None:
    found = served(api, path)
    return None if found is None else str(found["items"][0]["value"])


def _hpa(api: Api, name: str, metric: Json) -> None:
    path = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
    api.call("POST", path, aggregation.autoscaler(NAMESPACE, name, metric))


def _of_the_object(metric: CustomMetric, average: str) -> Json:
    described = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "InferenceService", "name": "whole"}
    target = {"type": "AverageValue", "averageValue": average}
    return {"type": "Object", "object": {"describedObject": described, "metric": {"name": metric}, "target": target}}


def _of_the_pods(metric: CustomMetric, average: str) -> Json:
    return {
        "type": "Pods",
        "pods": {"metric": {"name": metric}, "target": {"type": "AverageValue", "averageValue": average}},
    }


def _scaler(api: Api, name: str, namespace: str = NAMESPACE) -> tuple[str, str]:
    body = api.get("inferenceservices", namespace, name) or {}
    conditions = body.get("status", {}).get("conditions", [])
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == "ScalingActive"), ("", ""))


def test_a_real_autoscaler_follows_the_load_up_and_down_by_our_metrics(plane: Box, operator: OperatorProcess) -> None:
    api = Api(plane.kubeconfig)
    with Fleet(api, NAMESPACE) as fleet:
        for name in ("whole", "each"):
            api.create("inferenceservices", service(NAMESPACE, name, autoscaling={"mode": "External"}))
        eventually(lambda: len(fleet.serving()) == 2, "a pod of each serves", 30)
        fleet.share(8)
        eventually(lambda: served(api, METRICS), f"the API is there:\n{operator.tail()}", 30)
        eventually(lambda: _value(api, f"{OBJECTS}/whole/{CustomMetric.IN_FLIGHT}") == "8000m", "the metric is there")
        _hpa(api, "whole", _of_the_object(CustomMetric.IN_FLIGHT, "3"))
        _hpa(api, "each", _of_the_pods(CustomMetric.IN_FLIGHT, "4"))
        eventually(lambda: _scaled(fleet, 8) == (3, 2), "both go up to what the load asks for", 40)
        assert _scaler(api, "whole")[0] == "ExternallyScaled"
        # pods are asked one after the other: a client that moves to another may be counted twice for a moment
        told = "kube-controller-manager set spec.replicas to 3"
        eventually(lambda: told in _scaler(api, "whole")[1], f"{told}: {_scaler(api, 'whole')}", 40)
        query = f"?labelSelector={labels.selector_text('each')}"
        mine = [name for name in fleet.serving() if name.startswith("each-")]
        asked = f"{PODS}/*/{CustomMetric.IN_FLIGHT}{query}"
        eventually(lambda: _named(api, asked) == mine, "each of its pods has a value, and no other")
        eventually(lambda: _scaled(fleet, 1) == (1, 1), "both go down again", 60)
        assert operator.metric("pagefleet_drain_aborted_requests_total") == 0
        assert not operator.events("pass_crashed"), operator.tail()


def _named(api: Api, path: str) -> list[str]:
    return sorted(item["describedObject"]["name"] for item in (served(api, path) or {"items": ()})["items"])


def _scaled(fleet: Fleet, clients: int) -> tuple[int, int]:
    """Spread so many clients over the pods of each service; how many pods serve."""
    fleet.share(clients)
    serving = fleet.serving()
    return sum(name.startswith("whole-") for name in serving), sum(name.startswith("each-") for name in serving)


def test_the_api_says_what_there_is_and_what_there_is_not(plane: Box, operator: OperatorProcess) -> None:
    api = Api(plane.kubeconfig)
    eventually(lambda: served(api, METRICS), "the API is there", 30)
    assert len(api.call("GET", METRICS)["resources"]) == 2 * len(CustomMetric)
    conditions = api.call("GET", f"{API_SERVICES}/{API_SERVICE}")["status"]["conditions"]
    assert [(each["type"], each["status"]) for each in conditions] == [("Available", "True")]
    assert '"registered"' in operator.get("/readyz")[1]
    for path, status, words in (
        (f"{OBJECTS}/none/{CustomMetric.WAITING}", 404, "no pod that is ready tells pagefleet_waiting_requests"),
        (f"{OBJECTS}/whole/speed", 404, "no metric speed; there are pagefleet_waiting_requests"),
        (f"{PODS}/*/{CustomMetric.WAITING}?labelSelector=a%20in%20(b)", 400, "give NAME=VALUE"),
    ):
        with pytest.raises(ApiRefusal, match=words) as refusal:
            api.call("GET", path)
        assert refusal.value.status == status


def test_only_who_may_is_answered_and_only_through_the_api_server(
    plane: Box, operator: OperatorProcess, port: int, tmp_path: Path
) -> None:
    api = Api(plane.kubeconfig)
    eventually(lambda: served(api, METRICS), "the API is there", 30)
    restricted = json.loads(account(api, plane.kubeconfig, tmp_path, NAMESPACE).read_text())
    token = restricted["users"][0]["user"]["token"]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    path = f"{OBJECTS}/whole/{CustomMetric.WAITING}"
    headers = {"Authorization": f"Bearer {token}"}
    through = urllib.request.Request(f"https://{api.host}:{api.port}{path}", headers=headers)
    forged = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
    beside = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=forged)
    for request, status in ((through, 403), (beside, 401)):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=5, context=context)
        assert refusal.value.code == status


def test_an_api_that_belongs_to_another_is_left_alone(plane: Box, operator: OperatorProcess, tmp_path: Path) -> None:
    api = Api(plane.kubeconfig)
    eventually(lambda: served(api, METRICS), "the API is there", 30)
    before = api.call("GET", f"{API_SERVICES}/{API_SERVICE}")["spec"]
    flag = f"--custom-metrics=127.0.0.1:{free_port()}"
    api.create("namespaces", {"metadata": {"name": "elsewhere"}})
    other = aggregation.operator(plane, "elsewhere", free_port(), tmp_path / "log", flag, lease="y")
    try:
        told = eventually(lambda: other.events("custom_metrics_not_registered"), f"it says so:\n{other.tail()}", 30)
        words = f"APIService {API_SERVICE} belongs to {NAMESPACE}/x-api, not to elsewhere/y-api: left alone"
        assert told[-1]["problem"] == words
        assert words in eventually(lambda: other.get("/readyz")[1], "it answers")
        api.create("inferenceservices", service("elsewhere", "told", autoscaling={"mode": "External"}))
        eventually(lambda: words in _scaler(api, "told", "elsewhere")[1], f"the service says so:\n{other.tail()}", 30)
    finally:
        other.stop()
    assert api.call("GET", f"{API_SERVICES}/{API_SERVICE}")["spec"] == before


def test_a_model_in_an_image_is_mounted_where_server_and_nodes_can(plane: Box, tmp_path: Path) -> None:
    api = Api(plane.kubeconfig)
    info = {"kubeletVersion": "v1.35.0", "containerRuntimeVersion": "containerd://2.1.4"}
    api.create("nodes", {"metadata": {"name": "new"}})
    api.merge("nodes", None, "new", {"status": {"nodeInfo": info}}, "status")
    mounting = service(NAMESPACE, "mounted", model={"uri": "oci://registry.example/m:1#weights"})
    mounting["metadata"]["labels"] = {labels.SHARD: "seeing"}
    api.create("inferenceservices", mounting)
    seeing = aggregation.operator(plane, NAMESPACE, free_port(), tmp_path / "log", lease="s", shard="seeing")

    def wanted() -> Json:
        body = api.get("deployments", NAMESPACE, "mounted")
        return body if body is not None and body["spec"]["replicas"] == 1 else {}

    try:
        body = eventually(wanted, f"a pod is wanted:\n{seeing.tail()}", 60)
    finally:
        seeing.stop()
    volumes = body["spec"]["template"]["spec"]["volumes"]
    image = {"reference": "registry.example/m:1", "pullPolicy": "IfNotPresent"}
    assert [volume["image"] for volume in volumes if "image" in volume] == [image], body["metadata"]["annotations"]
    api.delete("inferenceservices", NAMESPACE, "mounted")
    api.delete("nodes", None, "new")
