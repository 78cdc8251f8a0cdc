"""A user scales a service by hand, and makes mistakes."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e import manifests
from e2e.kubectl import Kubectl
from e2e.service import KIND, Service, pod_load, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STEP_S = 0.1
ENGINE = {"maxNumSeqs": 1, "scheduling": {"policy": "priority"}}
HOLDS_THE_SEAT, BEHIND, FIRST = (0, 20), (1, 5), (-1, 1)
"""Priority and tokens of requests, in the order in which they come."""


def bad(**spec: Any) -> dict[str, Any]:
    return manifests.service("bad", **spec)


MISTAKES = [
    pytest.param(bad(replicaz=2), 'unknown field "spec.replicaz"', id="unknown field"),
    pytest.param(
        bad(engine={"flashAttention": True}), 'unknown field "spec.engine.flashAttention"', id="unknown engine field"
    ),
    pytest.param(bad(resources={"gpu": {"count": 1}}), "engine.device cpu takes no GPU", id="a GPU for a CPU"),
    pytest.param(
        bad(autoscaling={"minReplicas": 5, "maxReplicas": 3}),
        "spec.autoscaling.minReplicas: Forbidden: minReplicas 5 must not be above maxReplicas 3; lower",
        id="min above max",
    ),
    pytest.param(bad(autoscaling={"minReplicas": 0, "maxReplicas": 3}), "autoscaling.minReplicas 0 is not", id="min 0"),
    pytest.param(bad(autoscaling={"minReplicas": 1}), "autoscaling.maxReplicas is required unless", id="no max"),
    pytest.param(
        bad(rollout={"maxSurge": 0, "maxUnavailable": "0%"}),
        "rollout.maxSurge 0 and rollout.maxUnavailable 0% must not both be 0",
        id="no pod could be replaced",
    ),
    pytest.param(bad(engine={"kvCache": {}}), "engine.kvCache.size is required", id="no cache size on a CPU"),
    pytest.param(bad(replicas="two"), "spec.replicas: Invalid value", id="wrong type"),
    pytest.param(bad(model={"uri": "ftp://host/name"}), "model.uri", id="unknown scheme"),
    pytest.param(bad(model={}), "spec.model.uri: Required", id="no model"),
]


@pytest.mark.parametrize(("manifest", "message"), MISTAKES)
def test_a_bad_manifest_is_refused_with_the_fields_name(
    kubectl: Kubectl, manifest: dict[str, Any], message: str
) -> None:
    refused = kubectl.attempt("apply", "-f", "-", stdin=manifests.text(manifest))
    assert refused.returncode != 0 and message in refused.stderr
    assert kubectl.get(KIND, "bad") is None, "nothing is half applied"


def test_a_mistake_in_a_patch_leaves_the_running_service_alone(place: BoxSite, kubectl: Kubectl) -> None:
    service = Service(kubectl, "x")
    kubectl.apply(manifests.text(manifests.paced("x", STEP_S, engine=ENGINE)))
    before = service.object()["metadata"]["generation"]
    patch = '{"spec": {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}}'
    refused = kubectl.attempt("patch", KIND, "x", "--type=merge", "-p", patch)
    assert "rollout.maxSurge 0 and rollout.maxUnavailable 0 must not both be 0" in refused.stderr
    assert service.object()["metadata"]["generation"] == before


def test_who_comes_last_with_the_best_priority_is_answered_before_who_waits(place: BoxSite, kubectl: Kubectl) -> None:
    service = Service(kubectl, "x")
    service.wait_until_ready(1, 90)
    [pod] = service.pods()
    ended: list[tuple[int, int]] = []

    def ask(priority: int, tokens: int) -> None:
        body = {"prompt": "a", "priority": priority, "max_tokens": tokens, "ignore_eos": True}
        url = f"http://{pod.address}:{labels.ENGINE_PORT}/v1/completions"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=60).read()
        ended.append((priority, tokens))

    with ThreadPoolExecutor() as clients:
        asked = []
        for request in (HOLDS_THE_SEAT, BEHIND, FIRST):
            asked.append(clients.submit(ask, *request))
            wait_for(f"{len(asked)} are in", lambda: pod_load(pod).in_flight == len(asked), 20, every_s=0.05)
    for each in asked:
        each.result()
    assert ended == [HOLDS_THE_SEAT, FIRST, BEHIND]


def test_kubectl_scale_changes_the_number_of_ready_pods(place: BoxSite, kubectl: Kubectl) -> None:
    service = Service(kubectl, "x")
    service.wait_until_ready(1, 90)
    kubectl.run("scale", "infs/x", "--replicas=2")
    body = service.wait_until_ready(2, 90)
    assert (body["spec"]["replicas"], body["status"]["ready"]) == (2, "2/2")
    assert [pod.serving for pod in service.pods()] == [True, True]
    scale = kubectl.raw(f"/apis/pagefleet.io/v1alpha1/namespaces/{kubectl.namespace}/inferenceservices/x/scale")
    assert '"replicas":2' in scale and "pagefleet.io/service=x" in scale
