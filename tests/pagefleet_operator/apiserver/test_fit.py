"""Whether a model fits, told before a pod is made: files of a hub, types of GPU from the labels of nodes."""

import json
from collections.abc import Iterator

import pytest

from tests.pagefleet_api.sizing import configs
from tests.pagefleet_fetch.servers import Served, hub, serving
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver
GPU = "nvidia.com/gpu"


@pytest.fixture
def gpu_node(api: Api) -> Iterator[str]:
    """A node with eight L4, as NVIDIA's device plugin and feature discovery describe it."""
    name = "with-l4"
    labels = {f"{GPU}.product": "NVIDIA-L4", f"{GPU}.memory": "23034"}
    api.create("nodes", {"metadata": {"name": name, "labels": labels}})
    has = {GPU: "8", "cpu": "64", "memory": "256Gi", "pods": "110"}
    api.merge("nodes", None, name, {"status": {"capacity": has, "allocatable": has}}, "status")
    yield name
    api.delete("nodes", None, name)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub with Llama 3.1 70B, gated, that the operator reaches."""
    with hub({"config.json": json.dumps(configs.LLAMA_70B).encode()}, token="hf_good") as (served, _):
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield


def test_a_web_server_is_asked_for_a_model_only_where_it_is_listed(
    api: Api, namespace: str, start: Start, gpu_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"m/config.json": json.dumps(configs.LLAMA_8B).encode()}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Served(files)) as listed, serving(Served(files)) as other:
        start(flags=(f"--model-origins={listed.address}",)).ready()
        body = service(namespace, model={"uri": f"{other.address}/m"}, engine={"device": "cuda"}, replicas=0)
        api.create("inferenceservices", body)
        eventually(lambda: condition(api, namespace, "Fits") == ("Unknown", "ModelUnknown"), "it is not asked")
        api.merge("inferenceservices", namespace, "s", {"spec": {"model": {"uri": f"{listed.address}/m"}}})
        eventually(lambda: condition(api, namespace, "Fits") == ("True", "Estimated"), "it is read")
        assert status(api, namespace)["capacity"]["estimated"]["weightsBytes"] == 16_060_522_496
        assert other.asked == []


def status(api: Api, namespace: str) -> Json:
    found: Json = (api.get("inferenceservices", namespace, "s") or {}).get("status", {})
    return found


def condition(api: Api, namespace: str, kind: str) -> tuple[str, str]:
    """Status and reason."""
    for found in status(api, namespace).get("conditions") or ():
        if found["type"] == kind:
            return found["status"], found["reason"]
    return "", ""


def test_a_model_that_no_node_holds_makes_no_pod_until_that_is_asked_for(
    api: Api, namespace: str, start: Start, gpu_node: str, published: None
) -> None:
    start(flags=("--read-model-secrets",)).ready()
    api.create("secrets", {"metadata": {"name": "hub", "namespace": namespace}, "stringData": {"HF_TOKEN": "hf_good"}})
    model = {"uri": "hf://org/name", "revision": "main", "secretRef": {"name": "hub"}}
    api.create(
        "inferenceservices", service(namespace, model=model, engine={"device": "cuda"}, capacityPolicy="Enforce")
    )
    eventually(lambda: condition(api, namespace, "Stalled") == ("True", "TooLarge"), "it is said to be too large")
    assert condition(api, namespace, "Ready") == ("False", "TooLarge")
    estimated = status(api, namespace)["capacity"]["estimated"]
    assert (estimated["gpu"], estimated["weightsBytes"]) == ("L4", 141_107_412_992)
    assert api.get("deployments", namespace, "s") is None
    with Fleet(api, namespace):
        api.merge("inferenceservices", namespace, "s", {"spec": {"capacityPolicy": "Warn"}})
        eventually(
            lambda: condition(api, namespace, "Fits") == ("True", "Measured"), "a pod runs and has told its size"
        )
    assert status(api, namespace)["capacity"]["measured"] == {"kvBlocks": 1000, "kvTokens": 16_000}
