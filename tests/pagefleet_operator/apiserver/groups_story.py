"""Groups of pods under the real controller of LWS, with its webhooks.

Outside of `make test` for the minutes that its build takes: `make test-pipeline`.
"""

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.box import Box
from pagefleet_api import labels
from tests.pagefleet_operator.apiserver import lws, lws_controller
from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import NO_ROOM, Fleet
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service
from tests.ports import free_port

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(300)]

SHARED = {"tensor": 2, "pipeline": 2}
ENGINE = {"runtime": "vllm", "image": "vllm:1", "device": "cuda", "parallelism": SHARED}
SET = labels.group_set_name("s")
LEADERS = tuple(f"{SET}-{place}" for place in range(2))
WAIT_S = 60.0
"""For what takes two or three seconds on an idle machine."""


@pytest.fixture(scope="module", autouse=True)
def controller(box: Box, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with lws_controller.running(box, tmp_path_factory.mktemp("lws"), free_port(), free_port()) as log:
        yield log


@pytest.fixture
def fleet(api: Api, namespace: str) -> Iterator[Fleet]:
    with Fleet(api, namespace) as fleet:
        yield fleet


def body(namespace: str, **spec: Any) -> Json:
    return service(namespace, **{"model": {"uri": "file:///m"}, "engine": ENGINE, "replicas": 2, **spec})


def status(api: Api, namespace: str) -> Json:
    found: Json = (api.get("inferenceservices", namespace, "s") or {}).get("status") or {}
    return found


def condition(api: Api, namespace: str, kind: str) -> Json:
    return next((each for each in status(api, namespace).get("conditions", ()) if each["type"] == kind), {})


def settled(api: Api, namespace: str, ready: str) -> bool:
    """That many serve, and nothing is under way."""
    current = status(api, namespace)
    generation = (api.get("inferenceservices", namespace, "s") or {})["metadata"]["generation"]
    told = current.get("ready") == ready and current.get("observedGeneration") == generation
    return told and not condition(api, namespace, "Reconciling")


def uids(fleet: Fleet) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in fleet.pods()}


def begin(api: Api, namespace: str, start: Start, fleet: Fleet, **spec: Any) -> OperatorProcess:
    """An operator, and a service of which every pod runs."""
    operator = start(groups_look_s=0.5).ready()
    api.create("inferenceservices", body(namespace, **spec), strict=True)
    ready = f"{spec.get('replicas', 2)}/{spec.get('replicas', 2)}"
    eventually(lambda: settled(api, namespace, ready), "all groups serve", WAIT_S)
    eventually(lambda: all(pod["status"].get("containerStatuses") for pod in fleet.pods()), "all pods run", WAIT_S)
    return operator


def watched(state: Callable[[], object], api: Api, namespace: str, what: str) -> None:
    """Until `state()`; the service is ready all the while."""
    deadline_s = time.monotonic() + WAIT_S
    while not state():
        assert condition(api, namespace, "Ready")["status"] == "True", (what, status(api, namespace))
        assert time.monotonic() < deadline_s, (what, status(api, namespace))
        time.sleep(0.1)


def test_groups_come_up_know_their_leader_and_are_not_written_again(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    operator = begin(api, namespace, start, fleet)
    pods = {pod["metadata"]["name"]: pod for pod in fleet.pods()}
    assert set(pods) == {*LEADERS, *(f"{leader}-1" for leader in LEADERS)}
    chosen = api.list("pods", namespace, labels.selector_text("s"))
    assert {pod["metadata"]["name"] for pod in chosen} == set(LEADERS)
    for name, pod in pods.items():
        engine = pod["spec"]["containers"][0]
        told = {each["name"]: each.get("value") for each in engine["env"]}
        assert told["LWS_LEADER_ADDRESS"] == f"{'-'.join(name.split('-')[:3])}.{SET}.{namespace}"
        assert (told["LWS_GROUP_SIZE"], told["LWS_WORKER_INDEX"]) == ("2", str(int(name not in LEADERS)))
        assert ("--headless" in engine["args"]) == (name not in LEADERS)
    before = operator.quiet()
    api.merge("inferenceservices", namespace, "s", {"metadata": {"labels": {"seen": "again"}}})
    never(lambda: operator.writes() != before, "nothing changed, and something was written", 3)


def test_the_last_group_drains_while_it_is_busy_and_then_goes_alone(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    begin(api, namespace, start, fleet)
    before = uids(fleet)
    fleet.engines[LEADERS[1]].hold(3)
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}})
    eventually(lambda: fleet.serving() == [LEADERS[0]], "the last group serves no more", WAIT_S)
    never(lambda: uids(fleet) != before, "a group went before its answers were whole", 3)
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 2}})
    eventually(lambda: fleet.serving() == list(LEADERS), "it is taken back, as it is wanted again", WAIT_S)
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}})
    eventually(lambda: fleet.serving() == [LEADERS[0]], "it drains once more", WAIT_S)
    fleet.engines[LEADERS[1]].hold(0)
    eventually(lambda: set(uids(fleet)) == {LEADERS[0], f"{LEADERS[0]}-1"}, "the last group is gone", WAIT_S)
    eventually(lambda: settled(api, namespace, "1/1"), "one group serves", WAIT_S)
    assert uids(fleet).items() <= before.items()


def test_a_worker_that_restarts_takes_its_group_along_and_no_other(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    begin(api, namespace, start, fleet)
    before = uids(fleet)
    worker = next(pod for pod in fleet.pods() if pod["metadata"]["name"] == f"{LEADERS[1]}-1")
    (container,) = worker["status"]["containerStatuses"]
    restarted = {"status": {"containerStatuses": [{**container, "restartCount": 1}]}}
    api.merge("pods", namespace, f"{LEADERS[1]}-1", restarted, "status")
    kept = {LEADERS[0], f"{LEADERS[0]}-1"}
    watched(lambda: set(before.items()) & set(uids(fleet).items()) == {(name, before[name]) for name in kept},
            api, namespace, "the group is made anew")  # fmt: skip
    eventually(lambda: settled(api, namespace, "2/2"), "both groups serve again", WAIT_S)
    assert all(uids(fleet)[name] == before[name] for name in kept)


def roll(api: Api, namespace: str, fleet: Fleet) -> None:
    """Change the template, and wait until two groups of other pods are there; somebody serves all the while."""
    before = set(uids(fleet).values())
    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": {"maxNumSeqs": 9}}})
    watched(
        lambda: settled(api, namespace, "2/2") and not before & set(uids(fleet).values()),
        api, namespace, "the roll-out ends",
    )  # fmt: skip


def test_a_roll_out_reaches_every_pod_and_somebody_serves_all_the_while(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    begin(api, namespace, start, fleet)
    roll(api, namespace, fleet)
    pods = fleet.pods()
    assert len(pods) == 4
    assert len({pod["metadata"]["annotations"][labels.TEMPLATE] for pod in pods}) == 1
    assert status(api, namespace)["updatedReplicas"] == 2
    api.delete("inferenceservices", namespace, "s")
    eventually(lambda: not fleet.pods() and not lws.sets(api, namespace), "all goes with the service", WAIT_S)


def test_without_room_for_another_group_they_are_rolled_one_after_the_other(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    fleet.room = 4
    begin(api, namespace, start, fleet)
    roll(api, namespace, fleet)


def test_a_share_of_few_groups_that_comes_to_none_is_taken_as_one(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    begin(api, namespace, start, fleet, rollout={"maxSurge": 0, "maxUnavailable": "25%"})
    api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}})
    eventually(lambda: settled(api, namespace, "1/1"), "one group serves", WAIT_S)


def test_evictions_take_one_pod_at_a_time_whichever_group_it_is_of(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    begin(api, namespace, start, fleet)
    budget = functools.partial(api.get, "poddisruptionbudgets", namespace, "s")
    eventually(lambda: (budget() or {}).get("status", {}).get("disruptionsAllowed") == 1, "one may go", WAIT_S)
    fleet.room = 2  # its group does not come back while the others are asked
    assert api.evict(namespace, f"{LEADERS[1]}-1")
    for pod in (LEADERS[0], f"{LEADERS[0]}-1"):
        assert not api.evict(namespace, pod), "the other group stays whole"


def test_a_group_takes_the_place_of_a_pod_where_there_is_no_room_for_both(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    fleet.room = 2
    begin(api, namespace, start, fleet, replicas=1, engine={**ENGINE, "parallelism": {"tensor": 2, "pipeline": 1}})
    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": ENGINE}})
    eventually(lambda: fleet.serving() == [LEADERS[0]] and len(fleet.pods()) == 2, "the group serves", WAIT_S)


def test_without_room_pods_give_way_to_one_group_after_the_other_while_somebody_serves(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    fleet.room = 4
    begin(api, namespace, start, fleet, replicas=4, engine={**ENGINE, "parallelism": {"tensor": 2, "pipeline": 1}})
    held: list[int] = []

    def followed() -> bool:
        pods, serving = fleet.pods(), fleet.serving()
        held.append(sum(labels.GROUP_OF not in pod["metadata"]["labels"] and "-".join(_parts(pod)[:-1]) != SET
                        for pod in pods))  # fmt: skip
        return not api.list("deployments", namespace) and serving == list(LEADERS)

    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": ENGINE}})
    watched(followed, api, namespace, "two groups have the room of four pods")
    assert 2 in held, f"pods went one group's room at a time, not {held}"


def _parts(pod: Json) -> list[str]:
    name: str = pod["metadata"]["name"]
    return name.split("-")


def test_pods_that_a_quota_refuses_are_told_of_in_the_quotas_words(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    quota = {"metadata": {"name": "few", "namespace": namespace}, "spec": {"hard": {"pods": "0"}}}
    api.create("resourcequotas", {"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    eventually(lambda: "used" in (api.get("resourcequotas", namespace, "few") or {}).get("status", {}), "it holds")
    start(groups_look_s=0.5).ready()
    api.create("inferenceservices", body(namespace), strict=True)
    eventually(lambda: condition(api, namespace, "Ready").get("reason") == "QuotaExceeded", "it is told", WAIT_S)
    words = condition(api, namespace, "Ready")["message"]
    assert words.startswith("exceeded quota: few, requested: pods=1"), words
    api.merge("resourcequotas", namespace, "few", {"spec": {"hard": {"pods": "3"}}})
    eventually(lambda: condition(api, namespace, "Ready").get("message", "").startswith(
        "2 of 2 pods serve; exceeded quota"), "of a group that is not whole too", WAIT_S)  # fmt: skip
    api.merge("resourcequotas", namespace, "few", {"spec": {"hard": {"pods": "4"}}})
    eventually(lambda: condition(api, namespace, "Ready").get("message") == "2 of 2 pods serve", "and no more", WAIT_S)


def test_pods_of_one_node_follow_groups_and_groups_them_while_somebody_serves(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    begin(api, namespace, start, fleet, replicas=1, engine={**ENGINE, "parallelism": {"tensor": 2, "pipeline": 1}})
    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": ENGINE}})
    groups = {LEADERS[0], f"{LEADERS[0]}-1"}
    watched(lambda: set(uids(fleet)) == groups, api, namespace, "a group follows")
    eventually(lambda: settled(api, namespace, "1/1"), "the group serves", WAIT_S)
    assert not api.list("deployments", namespace)
    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": {"parallelism": {"pipeline": 1}}}})
    watched(lambda: len(uids(fleet)) == 1 and not groups & set(uids(fleet)), api, namespace, "a pod follows")
    eventually(lambda: settled(api, namespace, "1/1"), "the pod serves", WAIT_S)
    assert not lws.sets(api, namespace)


def test_a_worker_without_a_place_is_what_the_service_tells_of(
    api: Api, namespace: str, start: Start, fleet: Fleet
) -> None:
    fleet.room = 1
    start(groups_look_s=0.5).ready()
    late = {"progressDeadlineSeconds": 8}
    api.create("inferenceservices", body(namespace, replicas=1, rollout=late), strict=True)
    eventually(lambda: LEADERS[0] in fleet.engines, "the leader has a place", WAIT_S)
    fleet.engines[LEADERS[0]].draining = True  # it is not ready: it waits for its worker
    eventually(lambda: condition(api, namespace, "Ready").get("reason") == "Unschedulable", "it is told", WAIT_S)
    assert f"{LEADERS[0]}-1: " in condition(api, namespace, "Ready")["message"]
    assert NO_ROOM in condition(api, namespace, "Ready")["message"]
    stalled = functools.partial(condition, api, namespace, "Stalled")
    eventually(lambda: stalled().get("reason") == "ProgressDeadlineExceeded", "it waits for ever", WAIT_S)
    assert stalled()["message"].startswith("no progress for 8 s")
    fleet.room = None
    fleet.engines[LEADERS[0]].draining = False
    eventually(lambda: settled(api, namespace, "1/1") and not stalled(), "with room it goes on", WAIT_S)


def test_the_longest_name_gets_groups(api: Api, namespace: str, start: Start, fleet: Fleet) -> None:
    start(groups_look_s=0.5).ready()
    long = body(namespace)
    long["metadata"]["name"] = "a" * 63
    api.create("inferenceservices", long, strict=True)
    eventually(lambda: len(fleet.serving()) == 2 and len(fleet.pods()) == 4, "two groups of two pods", WAIT_S)
