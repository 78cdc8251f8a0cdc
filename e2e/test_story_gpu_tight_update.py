"""A change of a service whose only pod holds the only GPU: no second pod fits, and it must roll out all the same."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from e2e import manifests
from e2e.devices import NODES, on_nodes
from e2e.kubectl import Kubectl
from e2e.long_streams import Ridden, assert_all_whole, opened
from e2e.service import KIND, Service, condition, is_ready
from e2e.sites import BoxSite

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

GPU = "nvidia.com/gpu"
STEP_S = 0.5
TRIED_S = 30.0
"""Of the minute for which a second pod is tried: streams that begin then are open when the first one has to go."""
TOKENS = 110
"""An answer goes on for longer than the rest of that minute, though the streams may take a while to open."""


@pytest.fixture(scope="module")
def one_gpu(place: BoxSite) -> Iterator[None]:
    """One GPU on the whole cluster, as far as the scheduler can tell."""

    with on_nodes(place, GPU, 1, NODES[:1]):
        yield


@pytest.fixture(scope="module")
def service(one_gpu: None, kubectl: Kubectl) -> Service:
    service = Service(kubectl, "tight")
    resources = {"requests": {"cpu": "100m"}, "limits": {GPU: 1, "memory": "2Gi"}}
    kubectl.apply(manifests.text(manifests.paced("tight", STEP_S, resources=resources)))
    service.wait_until_ready(1, 90)
    return service


def test_a_change_rolls_out_by_itself_says_why_it_waits_and_cuts_no_stream_off(service: Service) -> None:
    first = service.pods()[0].name
    with service.watch() as watch, service.watch_deployment() as deployment:
        patch = '{"spec": {"engine": {"maxNumSeqs": 16}}}'
        service.kubectl.run("patch", KIND, "tight", "--type=merge", "-p", patch)
        generation = service.object()["metadata"]["generation"]
        watch.until(
            lambda body: body["status"].get("observedGeneration") == generation and GPU in json.dumps(body["status"]),
            40,
        )
        surge = deployment.seen[-1].body["spec"]["strategy"]["rollingUpdate"]
        assert (surge["maxSurge"], surge["maxUnavailable"]) == (1, 0), "a second pod is tried first"
        assert (condition(service.object(), "Ready") or {})["status"] == "True", "the old pod goes on serving"
        made = datetime.fromisoformat(str(service.pods()[-1].body["metadata"]["creationTimestamp"]))
        time.sleep(max(TRIED_S - (datetime.now(UTC) - made).total_seconds(), 0))
        with opened(service, TOKENS) as load:
            deployment.until(lambda body: body["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 1, 60)
            open_at_start, began_s = len(load.open_requests()), time.monotonic()
            answers = load.wait()
        watch.until(
            lambda body: (
                is_ready(body, 1)
                and body["metadata"]["generation"] == generation
                and body["status"].get("updatedReplicas") == 1
                and condition(body, "Reconciling") is None
            ),
            120,
        )
    assert_all_whole(Ridden(answers, open_at_start, time.monotonic() - began_s))
    pods = [pod for pod in service.pods() if not pod.terminating]
    assert len(pods) == 1 and pods[0].name != first
    assert "--max-num-seqs" in pods[0].body["spec"]["containers"][0]["args"]
