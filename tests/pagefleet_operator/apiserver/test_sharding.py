"""Several operators on one API server: every service has one, and moves from one to the other without a fight."""

from pathlib import Path

import pytest

from e2e.cluster.box import Box
from pagefleet_api import labels
from tests.pagefleet_operator.apiserver.accounts import account, allow
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service

pytestmark = pytest.mark.apiserver

_LAST_WORDS = 2
_SHORT = {"handover_s": 1.0, "rival_look_s": 0.5, "resync_s": 1.0}


def _sharded(namespace: str, name: str, shard: str | None) -> Json:
    body = service(namespace, name, replicas=2)
    body["metadata"]["labels"] = {} if shard is None else {labels.SHARD: shard}
    return body


def _writer(api: Api, namespace: str, name: str) -> str:
    live = api.get("deployments", namespace, name) or {"metadata": {}}
    return str((live["metadata"].get("annotations") or {}).get(labels.OPERATOR, "")).rpartition("/")[2]


def _is_ready(api: Api, namespace: str, name: str) -> bool:
    return bool((api.get("inferenceservices", namespace, name) or {}).get("status", {}).get("ready") == "2/2")


def _knows(operator: OperatorProcess, name: str) -> bool:
    return f'inference_service="{name}"' in operator.get("/metrics")[1]


def test_each_shard_has_its_operator_and_a_service_that_moves_keeps_its_pods(
    api: Api, namespace: str, start: Start
) -> None:
    here = ("--namespace", namespace)
    plain = start(**_SHORT).ready()
    blue = start(flags=(*here, "--shard", "blue"), **_SHORT).ready()
    green = start(flags=(*here, "--shard", "green"), **_SHORT).ready()
    with Fleet(api, namespace):
        for name, shard in (("p", None), ("b", "blue"), ("g", "green"), ("nobodys", "red")):
            api.create("inferenceservices", _sharded(namespace, name, shard))
        for name, lease in (("p", ""), ("b", "-blue"), ("g", "-green")):
            eventually(lambda: _is_ready(api, namespace, name), f"{name} is ready")  # noqa: B023
            assert _writer(api, namespace, name) == f"pagefleet-operator{lease}"
        assert api.get("deployments", namespace, "nobodys") is None
        assert [_knows(each, "b") for each in (plain, blue, green)] == [False, True, False]
        before = {pod["metadata"]["uid"] for pod in api.list("pods", namespace, f"{labels.SERVICE}=b")}

        api.merge("inferenceservices", namespace, "b", {"metadata": {"labels": {labels.SHARD: "green"}}})
        eventually(lambda: _writer(api, namespace, "b") == "pagefleet-operator-green", "green takes it over")
        eventually(lambda: not _knows(blue, "b"), "blue has forgotten it")
        api.merge("inferenceservices", namespace, "b", {"spec": {"replicas": 3}}, "scale")
        eventually(lambda: (api.get("deployments", namespace, "b") or {})["spec"]["replicas"] == 3, "green scales it")
        after = {pod["metadata"]["uid"] for pod in api.list("pods", namespace, f"{labels.SERVICE}=b")}
        assert len(before) == 2 and before <= after, "no pod was touched"
        assert _knows(green, "b")


def test_a_second_operator_for_the_same_services_leaves_them_alone_until_the_first_is_gone(
    api: Api, namespace: str, start: Start
) -> None:
    first = start(**_SHORT).ready()
    with Fleet(api, namespace):
        api.create("inferenceservices", _sharded(namespace, "s", None))
        eventually(lambda: _is_ready(api, namespace, "s"), "the service is ready")
        flags = ("--namespace", namespace, "--lease-name", "second", "--engine-image", "engine:2")
        second = start(flags=flags, **_SHORT).ready()
        eventually(lambda: second.events("service_of_another_operator"), "it says so")
        assert second.events("service_of_another_operator")[0]["operator"] == f"{namespace}/pagefleet-operator"
        before = first.writes()
        # what the first has still to say of the service's start is a write or two; a fight is one every pass
        never(lambda: second.writes() > 0 or first.writes() > before + _LAST_WORDS, "they fight", 3)
        first.kill()
        eventually(lambda: _writer(api, namespace, "s") == "second", "the second acts when the first is dead", 20)


def test_a_list_of_namespaces_needs_roles_in_them_and_nothing_at_cluster_scope(
    api: Api, box: Box, namespace: str, start: Start, tmp_path: Path
) -> None:
    other = f"{namespace}-second"
    api.create("namespaces", {"metadata": {"name": other}})
    kubeconfig = account(api, box.kubeconfig, tmp_path, namespace)
    for each in (namespace, other):
        allow(api, namespace, each)
    start(kubeconfig=kubeconfig, flags=("--namespace", namespace, "--namespace", other)).ready()
    for each in (namespace, other):
        api.create("inferenceservices", service(each))
        eventually(lambda: api.get("deployments", each, "s"), f"it is served in {each}")  # noqa: B023
    api.delete("inferenceservices", other, "s")
