"""Downloads onto a claim: one Job for all services of a namespace with that model, before any pod is wanted."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pagefleet_api import labels
from tests.pagefleet_fetch.servers import Fault, Served, serving
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver

MODEL = {"uri": "s3://bucket/name", "cache": {"mode": "PVC", "pvc": "models", "limit": "1Gi"}}


def _condition(api: Api, namespace: str, name: str, kind: str) -> Json:
    live = api.get("inferenceservices", namespace, name) or {}
    conditions = live.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _job(api: Api, namespace: str) -> Json:
    (job,) = eventually(lambda: api.list("jobs", namespace), "there is a Job")
    return job


def _owners(api: Api, namespace: str) -> list[str]:
    return sorted(owner["name"] for owner in _job(api, namespace)["metadata"]["ownerReferences"])


def _end_pods(api: Api, namespace: str, job: str, phase: str) -> None:
    pods = eventually(lambda: api.list("pods", namespace, f"pagefleet.io/fetch={job}"), "the Job has a pod")
    for pod in pods:
        api.merge("pods", namespace, pod["metadata"]["name"], {"status": {"phase": phase}}, "status")


def _replicas(api: Api, namespace: str, name: str) -> int | None:
    found = api.get("deployments", namespace, name)
    return None if found is None else found["spec"]["replicas"]


def _wait(api: Api, namespace: str, name: str, replicas: int, cached: str) -> None:
    def reached() -> bool:
        status = _condition(api, namespace, name, "ModelCached").get("status")
        return status == cached and _replicas(api, namespace, name) == replicas

    eventually(reached, f"{name} wants {replicas} pods, ModelCached is {cached}")


def test_two_services_share_one_download_that_comes_before_their_pods(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    for name in ("one", "two"):
        api.create("inferenceservices", service(namespace, name, model=MODEL, replicas=2))
    eventually(lambda: _owners(api, namespace) == ["one", "two"], "both own the one Job")
    for name in ("one", "two"):
        _wait(api, namespace, name, 0, "False")
    _end_pods(api, namespace, _job(api, namespace)["metadata"]["name"], "Succeeded")
    for name in ("one", "two"):
        _wait(api, namespace, name, 2, "True")
    api.delete("inferenceservices", namespace, "one")
    api.merge("inferenceservices", namespace, "two", {"spec": {"model": {"uri": "s3://bucket/next"}}})
    eventually(
        lambda: ["fetch-next" in job["metadata"]["name"] for job in api.list("jobs", namespace)] == [True],
        "the old model's record has gone, the next one's is made",
    )


def test_another_secret_begins_the_download_anew(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    api.create("inferenceservices", service(namespace, model={**MODEL, "secretRef": {"name": "old"}}))
    first = _job(api, namespace)["metadata"]["uid"]
    api.merge("inferenceservices", namespace, "s", {"spec": {"model": {"secretRef": {"name": "new"}}}})
    eventually(lambda: [job["metadata"]["uid"] for job in api.list("jobs", namespace)] != [first], "the old Job goes")
    eventually(
        lambda: any('"new"' in str(job).replace("'", '"') for job in api.list("jobs", namespace)), "and a new one comes"
    )


def test_a_model_in_an_image_is_copied_where_no_node_can_mount_it(api: Api, namespace: str, start: Start) -> None:
    operator = start().ready()
    api.create("inferenceservices", service(namespace, model={"uri": "oci://registry.example/m:1#weights"}))

    def wanted(name: str) -> Json:
        body = api.get("deployments", namespace, name)
        return body if body is not None and body["spec"]["replicas"] else {}

    body = eventually(lambda: wanted("s"), f"a pod is wanted:\n{operator.tail()}")
    pod = body["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["initContainers"]] == [labels.COPIER_CONTAINER, labels.COPY_CONTAINER]
    api.merge("inferenceservices", namespace, "s", {"metadata": {"labels": {"look": "again"}}})
    api.create("inferenceservices", service(namespace, "later"))
    eventually(lambda: wanted("later"), f"a later service has its pod:\n{operator.tail()}")
    assert wanted("s")["metadata"]["generation"] == body["metadata"]["generation"], "it stays as it is"
    written = [each["time"] for each in wanted("s")["metadata"]["managedFields"] if each["manager"] == "pagefleet"]
    assert written == [each["time"] for each in body["metadata"]["managedFields"] if each["manager"] == "pagefleet"]


def test_how_far_a_download_is_stands_in_the_condition(api: Api, namespace: str, start: Start, tmp_path: Path) -> None:
    """A real fetch, in place of the Job's pod, whose server sends half of the file and then waits."""
    gate, host = threading.Event(), "127.9.0.1"
    faults = {"small.gguf": [Fault(cut_after=1 << 20), Fault(wait=gate)]}
    start().ready()
    api.create("inferenceservices", service(namespace, model=MODEL))
    name = _job(api, namespace)["metadata"]["name"]
    with serving(Served({"small.gguf": bytes(2 << 20)}, faults=faults)) as served:
        command = [sys.executable, "-m", "pagefleet_fetch", f"{served.address}/small.gguf", f"--into={tmp_path / 'm'}"]
        with subprocess.Popen([*command, f"--tell={host}:{labels.ADMIN_PORT}"], stdout=subprocess.DEVNULL) as fetch:
            _run_pods(api, namespace, name, host)
            eventually(
                lambda: "1.0 of 2.0 MiB (50 %)" in _condition(api, namespace, "s", "ModelCached").get("message", ""),
                "the condition tells how far it is",
                timeout_s=30,
            )
            fetch.kill()
        gate.set()


def _run_pods(api: Api, namespace: str, job: str, address: str) -> None:
    container = {
        "name": labels.FETCH_CONTAINER, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "ready": False,
        "restartCount": 0, "image": "i", "imageID": "i",
    }  # fmt: skip
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "containerStatuses": [container]}
    for pod in eventually(lambda: api.list("pods", namespace, f"pagefleet.io/fetch={job}"), "the Job has a pod"):
        api.merge("pods", namespace, pod["metadata"]["name"], {"status": status}, "status")
