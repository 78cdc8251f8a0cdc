"""A real vLLM in pods: ready, sampled in its own words, scaled down and deleted under load without cutting answers off.

Outside of `make test` for the size of its image: `make test-runtimes`.
"""

import time
from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

import pytest

from e2e import manifests
from e2e.answers import Answer, Ask, summary
from e2e.exchange import Target
from e2e.kubectl import Json, Kubectl
from e2e.load import Load, LoadPlan
from e2e.runtimes import vllm_arguments, vllm_image
from e2e.runtimes.engine_pods import held_by_vllm
from e2e.service import Pod, Service, is_ready, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

NODE = "node1"
SEATS, STREAMS = 8, 24
TOKENS = 600
TO_GO = 100
"""Tokens that an answer still has to come when its pod begins to leave."""

SPEC = {
    "model": {"uri": f"file://{vllm_image.MODEL}", "servedName": "tiny"},
    "engine": {
        "runtime": "vllm",
        "image": vllm_image.IMAGE,
        "device": "cpu",
        "dtype": "bfloat16",
        "maxModelLen": 4096,
        "maxNumSeqs": SEATS,
        "kvCache": {"size": "256Mi"},
        "extraArgs": ["--enforce-eager"],
    },
    "resources": {"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
    "podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": NODE}}},
    "drain": {"timeoutSeconds": 240},
    "replicas": 2,
}


class Left(NamedTuple):
    """Streams while a pod left: how many of them it cut off would be seen here."""

    answers: list[Answer]
    held: int
    """Answers with tokens to come, on the pod that left, when it began to."""
    seconds: float
    """From then until it was gone."""


def streams(service: Service, pods: list[Pod] | None = None) -> LoadPlan:
    """To the Service, or to `pods` in turn: kube-proxy may know of the latest one only later than the status does."""
    urls = (
        [service.cluster_url()] if pods is None else [f"http://{pod.address}:{labels.ENGINE_PORT}/v1" for pod in pods]
    )
    turns = cycle(urls)
    target = Target(url=lambda: next(turns), model="tiny", request_timeout_s=400)
    return LoadPlan(target=target, ask=lambda n: Ask(f"{n}: a story", TOKENS), clients=STREAMS, requests=STREAMS)


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl) -> Service:
    """Two pods of it, both reached by new connections."""
    place.box.load_image(NODE, vllm_image.build(print))
    found = Service(kubectl, "vllm")
    kubectl.apply(manifests.text(manifests.service("vllm") | {"spec": SPEC}))
    found.wait_until_ready(2, 900)
    return found


@pytest.fixture(scope="module")
def scaled_down(service: Service) -> Left:
    """One of two pods leaves while every stream is open."""
    pods = service.pods()
    with service.watch() as watch, Load.start(streams(service, pods)) as load:
        held = _when_all_are_open(load, pods)
        started_s = time.monotonic()
        service.scale(1)
        answers = load.wait(180)
        watch.until(lambda body: is_ready(body, 1), 120, started_s)
        wait_for("one pod is gone", lambda: len(service.pods()) == 1, 120)
    (stays,) = service.pods()
    return Left(answers, sum(n for name, n in held.items() if name != stays.name), time.monotonic() - started_s)


@pytest.fixture(scope="module")
def targets_under_load(service: Service, scaled_down: Left) -> str:
    """The column of the one pod while its queue is full, under an autoscaler that may not add any."""
    limits = {"minReplicas": 1, "maxReplicas": 1, "metrics": [_metric("WaitingRequests"), _metric("KVCacheUsage")]}
    service.kubectl.apply(manifests.text(manifests.service("vllm") | {"spec": {**SPEC, "autoscaling": limits}}))
    with service.watch() as watch, Load.start(streams(service)) as load:
        _when_all_are_open(load, service.pods())
        seen = watch.until(lambda body: _queue_in(body) > 0, 60, time.monotonic())
        load.wait(180)
    targets: str = seen.body["status"]["targets"]
    return targets


@pytest.fixture(scope="module")
def deleted(service: Service, targets_under_load: str) -> Left:
    """The last pod is deleted while every stream is open; nothing but the kubelet ends it."""
    (pod,) = service.pods()
    with Load.start(streams(service)) as load:
        held = _when_all_are_open(load, [pod])
        started_s = time.monotonic()
        service.kubectl.run("delete", "pod", pod.name, "--wait=false")
        answers = load.wait(180)
        wait_for("it is gone", lambda: pod.name not in {each.name for each in service.pods()}, 300)
    return Left(answers, held[pod.name], time.monotonic() - started_s)


def _metric(kind: str) -> Json:
    target = {"averageValue": "2"} if kind == "WaitingRequests" else {"averageUtilization": 75}
    return {"type": kind, "target": target}


def _queue_in(body: Json) -> int:
    """The waiting requests that the status tells, 0 while it tells none."""
    texts = body.get("status", {}).get("targets", "").split(", ")
    told = [text.split()[1].partition("/")[0] for text in texts if text.startswith("queue ")]
    return int(float(told[0])) if told and told[0][:1].isdigit() else 0


def _when_all_are_open(load: Load, pods: list[Pod]) -> dict[str, int]:
    """Requests by pod, once each stream is held by one and all have tokens to come."""
    held: dict[str, int] = {}

    def all_open() -> bool:
        held.update({pod.name: held_by_vllm(pod) for pod in pods})
        return sum(held.values()) == STREAMS

    wait_for("every stream is open", all_open, 60, every_s=0.2)
    assert min(load.open_requests().values()) >= TO_GO
    return held


@pytest.fixture(scope="module")
def runs(scaled_down: Left, deleted: Left) -> Iterator[dict[str, Left]]:
    yield {"scaled down": scaled_down, "deleted": deleted}


def test_it_takes_every_argument_that_a_field_becomes(service: Service) -> None:
    assert vllm_arguments.guesses_as_vllm_reads_them(service.kubectl, service.pods()[0].name) == [
        ["ngram", "ngram", 6, 4, 2],
        ["draft_model", vllm_image.MODEL, 3, 0, 0],
    ]


def test_it_is_ready_and_answers(service: Service, scaled_down: Left) -> None:
    assert scaled_down.answers[0].status == 200
    assert service.status["url"].endswith("/v1")


@pytest.mark.parametrize("how", ["scaled down", "deleted"])
def test_every_client_gets_all_its_tokens(runs: dict[str, Left], how: str) -> None:
    left = runs[how]
    result = summary(left.answers)
    print(f"{how}: {left.held} answers held, gone after {left.seconds:.0f} s\n{result}")
    assert left.held > 0
    assert result.faults == {}
    assert (result.requests, result.answered) == (STREAMS, STREAMS)


def test_the_drain_of_the_scale_down_is_told_with_no_answer_aborted(service: Service, scaled_down: Left) -> None:
    told = [event["message"] for event in service.events() if event["reason"].startswith("Drain")]
    print(told)
    assert any("0 aborted" in message for message in told)
    assert not any("timed out" in message for message in told)


def test_the_autoscaler_sees_its_queue_and_its_cache(targets_under_load: str) -> None:
    print(targets_under_load)
    assert "queue " in targets_under_load
    assert "kv " in targets_under_load


def test_a_pod_that_is_deleted_ends_soon_after_its_last_answer(deleted: Left) -> None:
    """vLLM's default would leave its streams hanging until the grace period kills it, after 260 s."""
    last_s = max(answer.ended_s for answer in deleted.answers)
    assert deleted.seconds < last_s + 60
