"""One model of a real vLLM over two pods on two nodes, under the real controller of LWS: what is computed goes through
both, so their ranks, their addresses and what becomes of answers when one of them leaves or dies are vLLM's own.

Outside of `make test` for the size of its image and the minutes that LWS takes to compile: `make test-pipeline`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pytest

from e2e import manifests
from e2e.answers import Answer, Ask, summary
from e2e.demo_steps import QUESTION, chat
from e2e.exchange import Target
from e2e.kubectl import Json, Kubectl
from e2e.load import Load, LoadPlan
from e2e.runtimes import vllm_image
from e2e.runtimes.engine_pods import held_by_vllm, workers
from e2e.service import Pod, Service, condition, wait_for
from e2e.sites import BoxSite
from pagefleet_api import labels
from tests.pagefleet_operator.apiserver import lws_controller
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME, STREAMS, TOKENS, TO_GO = "stages", 8, 600, 100
START_S = 600

_APART = {"labelSelector": {"matchLabels": {"leaderworkerset.sigs.k8s.io/name": labels.group_set_name(NAME)}}}
_POD = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{**_APART, "topologyKey": "kubernetes.io/hostname"}]
        }
    },
    "containers": [{"name": labels.CONTAINER, "env": [{"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"}]}],
}
SPEC = {
    "model": {"uri": f"file://{vllm_image.MODEL}", "servedName": "tiny"},
    "engine": {
        "runtime": "vllm",
        "image": vllm_image.IMAGE,
        "dtype": "bfloat16",
        "maxModelLen": 1024,
        "maxNumSeqs": STREAMS,
        "kvCache": {"size": "64Mi"},
        "parallelism": {"pipeline": 2},
        # not --enforce-eager: on a CPU the second stage then has no buffer for what the first one sends
        "extraArgs": ["--compilation-config", '{"mode": 2, "backend": "eager"}'],
    },
    "resources": {
        "gpu": {"count": 0},
        "requests": {"cpu": "100m", "memory": "1500Mi"},
        "limits": {"memory": "3Gi"},
    },
    "podTemplate": {"spec": _POD},
    "drain": {"timeoutSeconds": 240},
    "replicas": 1,
}
_KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"VLLM::Worker" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), signal.SIGKILL)
"""


class Group(NamedTuple):
    """The two pods that compute one model."""

    leader: Pod
    worker: Pod


class Left(NamedTuple):
    """Streams while a pod of their group left; times in seconds since the load's start."""

    answers: list[Answer]
    held: int
    """Answers with tokens to come when it began to."""
    gone_s: float
    """When the leader was no more, and the worker that was there with it."""
    told: list[str]
    """What `Ready` said meanwhile, one after the other."""


@pytest.fixture(scope="module")
def service(place: BoxSite, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = vllm_image.build(print)
    for node in place.box.nodes():
        place.box.load_image(node, made)
    with lws_controller.running(place.box, tmp_path_factory.mktemp("lws"), free_port(), free_port()):
        found = Service(kubectl, NAME)
        found.kubectl.apply(manifests.text(manifests.service(NAME) | {"spec": SPEC}))
        began_s = time.monotonic()
        found.wait_until_ready(1, START_S)
        print(f"ready after {time.monotonic() - began_s:.0f} s")
        yield found
        found.kubectl.run("delete", "infs", NAME)
        wait_for("its pods are gone", lambda: not workers(found) and not found.pods(), 300)


def url(pod: Pod) -> str:
    return f"http://{pod.address}:{labels.ENGINE_PORT}/v1"


def streams(leader: Pod) -> LoadPlan:
    target = Target(url=lambda: url(leader), model="tiny", request_timeout_s=400)
    return LoadPlan(target=target, ask=lambda n: Ask(f"{n}: a story", TOKENS), clients=STREAMS, requests=STREAMS)


def group(service: Service) -> Group:
    (leader,), (worker,) = service.pods(), workers(service)
    return Group(leader, worker)


def left(service: Service, begin: Callable[[], object]) -> Left:
    """What becomes of the streams of the one group after `begin`."""
    pods = group(service)
    with service.watch() as watch, Load.start(streams(pods.leader)) as load:
        wait_for("every stream is open", lambda: held_by_vllm(pods.leader) == STREAMS, 60, every_s=0.2)
        held = sum(to_go >= TO_GO for to_go in load.open_requests().values())
        begin()
        answers = load.wait(180)
        wait_for("both are gone", lambda: not uids(pods) & uids((*service.pods(), *workers(service))), 300)
        gone_s = time.monotonic() - load.started_s
        told = list(dict.fromkeys(ready_text(each.body) for each in watch.seen))
    print(f"{held} answers held, gone after {gone_s:.0f} s", *told, summary(answers), sep="\n")
    return Left(answers, held, gone_s, told)


def uids(pods: Iterable[Pod]) -> set[str]:
    return {str(pod.body["metadata"]["uid"]) for pod in pods}


def ready_text(body: Json) -> str:
    ready = condition(body, "Ready") or {}
    return f"{ready.get('reason')}: {ready.get('message')}"


def answer(service: Service) -> str:
    return "".join(chat(url(group(service).leader), "tiny", QUESTION))


@pytest.fixture(scope="module")
def first_answer(service: Service) -> str:
    return answer(service)


@pytest.fixture(scope="module")
def drained(service: Service, first_answer: str) -> Left:
    """The worker is deleted, as where its node is drained, while its leader's streams are open."""
    delete = ("delete", "pod", group(service).worker.name, "--wait=false")
    return left(service, lambda: service.kubectl.run(*delete))


@pytest.fixture(scope="module")
def second_answer(service: Service, drained: Left) -> str:
    service.wait_until_ready(1, START_S)
    return answer(service)


@pytest.fixture(scope="module")
def killed(service: Service, second_answer: str) -> Left:
    """What the worker computes with is killed while its leader's streams are open."""
    kill = ("exec", group(service).worker.name, f"--container={labels.CONTAINER}", "--", "python3", "-c", _KILL)
    return left(service, lambda: service.kubectl.attempt(*kill))  # its container may end before it does


@pytest.fixture(scope="module")
def third_answer(service: Service, killed: Left) -> str:
    service.wait_until_ready(1, START_S)
    return answer(service)


@pytest.fixture(scope="module")
def stopped(service: Service, third_answer: str) -> Left:
    """The last group is scaled away while its streams are open."""
    return left(service, lambda: service.scale(0))


def test_each_stage_is_on_a_node_of_its_own_and_knows_its_rank(service: Service, first_answer: str) -> None:
    pods = group(service)
    assert pods.leader.node != pods.worker.node
    for rank, pod in enumerate(pods):
        log = service.kubectl.run("logs", pod.name)
        assert f"rank {rank} in world size 2 is assigned as DP rank 0, PP rank {rank}" in log
    assert first_answer


def test_a_worker_that_is_deleted_outlives_the_answers_of_its_leader(drained: Left) -> None:
    whole(drained)  # what it computes is part of every token


def test_the_group_that_lost_it_is_made_anew_and_answers_the_same(first_answer: str, second_answer: str) -> None:
    assert second_answer == first_answer


def test_nobody_waits_long_for_a_worker_that_was_killed(killed: Left) -> None:
    assert killed.held == STREAMS
    assert all(each.fault is not None for each in killed.answers)
    assert max(each.ended_s for each in killed.answers) < 240, summary(killed.answers)


def test_ready_names_the_leader_that_waits_for_a_worker_that_was_killed(service: Service, killed: Left) -> None:
    leader = f"{labels.group_set_name(service.name)}-0"
    assert f"Starting: {leader} is ending, and its group is made anew after it" in killed.told


def test_a_group_whose_worker_was_killed_is_made_anew(first_answer: str, third_answer: str) -> None:
    assert third_answer == first_answer


def test_no_answer_is_cut_off_where_the_last_group_is_scaled_away(stopped: Left) -> None:
    whole(stopped)


def whole(found: Left) -> None:
    """No stream was cut off."""
    result = summary(found.answers)
    assert found.held == STREAMS
    assert result.faults == {}
    assert (result.requests, result.answered) == (STREAMS, STREAMS)
