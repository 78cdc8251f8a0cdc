from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_operator.facts.evidence import (
    Room,
    Warned,
    allocatable_on,
    essentials,
    extended_requests,
    probe_kill,
    pulls,
    refused,
    taken_by,
    takes_pods,
)

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int | None = 8, *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    has = {} if gpus is None else {GPU: str(gpus)}
    status = {"allocatable": {"cpu": "4", **has}, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


def pod(where: str | None, gpus: int, phase: str = "Running") -> dict[str, Any]:
    container = {"resources": {"limits": {GPU: str(gpus)}}}
    spec = {"containers": [container], **({"nodeName": where} if where else {})}
    return {"spec": spec, "status": {"phase": phase}}


def room_of(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> Room:
    """As it is counted: the pods of each node on their own."""
    allocatable = allocatable_on(nodes, GPU)
    on = {name: [pod for pod in pods if pod["spec"].get("nodeName") == name] for name in allocatable}
    return Room.of(GPU, allocatable, {name: taken_by(held, GPU) for name, held in on.items()})


def test_room_is_what_pods_leave_on_nodes_that_have_the_resource() -> None:
    nodes = [node("a"), node("b"), node("none", None)]
    pods = [pod("a", 5), pod("a", 2), pod("b", 6), pod(None, 1), pod("none", 1), pod("b", 2, "Failed")]
    room = room_of(nodes, pods)
    assert room == Room(resource=GPU, free_by_node={"a": 1, "b": 2}, allocatable=16)
    assert (room.total_free, room.most_free) == (3, 2)
    assert (room.pods(1), room.pods(2), room.pods(3)) == (3, 1, 0)


@pytest.mark.parametrize(
    "away",
    [
        node("b", ready="Unknown"),
        node("b", unschedulable=True),
        node("b", taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]),
    ],
)
def test_a_node_that_takes_no_pods_has_no_room(away: dict[str, Any]) -> None:
    room = room_of([node("a"), away], [pod("b", 8)])
    assert (room.free_by_node, room.allocatable) == ({"a": 8}, 8)


@pytest.mark.parametrize(
    "taint",
    [
        {"key": GPU, "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "PreferNoSchedule"},
    ],
)
def test_taints_that_a_pod_may_tolerate_take_no_room(taint: dict[str, Any]) -> None:
    assert room_of([node("a", taints=[taint])], []).total_free == 8


def test_a_node_that_lost_devices_under_its_pods_has_none_free() -> None:
    room = room_of([node("a", 2)], [pod("a", 4)])
    assert (room.free_by_node, room.allocatable, room.most_free) == ({"a": 0}, 2, 0)


def test_where_nothing_has_the_resource_no_pod_fits() -> None:
    room = room_of([], [])
    assert (room.total_free, room.most_free, room.pods(1)) == (0, 0, 0)


def container(gpus: int, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {GPU: gpus, "cpu": "1"}}, **more}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {}),
        ({"containers": [{"resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}}}]}, {}),
        ({"containers": [{"resources": {"limits": {"kubernetes.io/x": "1", GPU: "0"}}}]}, {}),
        ({"containers": [container(2), container(1)]}, {GPU: 3}),
        ({"containers": [container(2)], "initContainers": [container(1)]}, {GPU: 2}),
        ({"containers": [container(1)], "initContainers": [container(4)]}, {GPU: 4}),
        (
            {
                "containers": [container(2)],
                "initContainers": [container(1, restartPolicy="Always"), container(3)],
            },
            {GPU: 4},
        ),
        (
            {
                "containers": [container(2)],
                "initContainers": [container(3), container(1, restartPolicy="Always")],
            },
            {GPU: 3},
        ),
    ],
)
def test_a_pod_asks_for_what_its_containers_need_at_the_same_time(
    spec: dict[str, Any], expected: dict[str, int]
) -> None:
    assert extended_requests(spec) == expected


def event(reason: str, second: int, message: str = "", **more: Any) -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": f"2026-01-01T00:00:{second:02}Z", **more}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([event("Scheduled", 1), event("BackOff", 2), event("Unhealthy", 3)], None),
        ([event("FailedMount", 2, "b"), event("FailedMount", 1, "a")], Warned("FailedMount", "b")),
        ([event("FailedMount", 2), event("Pulling", 3)], None),
        ([event("Pulling", 2), event("FailedMount", 2)], None),
        ([event("SuccessfulAttachVolume", 1), event("FailedMount", 2, "m")], Warned("FailedMount", "m")),
        (
            [
                {"reason": "FailedMount", "eventTime": "2026-01-01T00:00:01.5Z", "message": "once"},
                {"reason": "FailedCreatePodSandBox", "series": {"lastObservedTime": "2026-01-01T00:00:02.5Z"}},
            ],
            Warned("FailedCreatePodSandBox", ""),
        ),
        ([{"reason": "FailedMount"}], Warned("FailedMount", "")),
    ],
)
def test_what_hinders_a_container_is_what_was_said_last(events: list[dict[str, Any]], expected: Warned | None) -> None:
    assert Warned.latest(events) == expected


def test_pulls_are_counted_by_the_kubelets_events() -> None:
    events = [event("Pulling", 1, count=3), event("Pulling", 2), event("Pulling", 3, series={"count": 2})]
    assert pulls([*events, event("Failed", 4, count=9)]) == 6
    assert pulls([]) == 0


LIVENESS = "Container engine failed liveness probe, will be restarted"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([event("Started", 1), event("Unhealthy", 4), event("Killing", 5, LIVENESS)], LIVENESS),
        ([event("Killing", 5, LIVENESS), event("Started", 7)], None),
        ([event("Killing", 5, LIVENESS), event("Started", 20)], LIVENESS),
        ([event("Killing", 2, LIVENESS), event("Killing", 6, "Stopping container engine")], None),
        ([event("Killing", 20, LIVENESS)], None),
        ([{"reason": "Killing", "message": LIVENESS}], None),
    ],
    ids=["none", "killed", "another since", "started after", "stopped", "after its end", "undated"],
)
def test_a_container_that_a_probe_ended_is_told_from_one_that_ended_by_itself(
    events: list[dict[str, Any]], expected: str | None
) -> None:
    assert probe_kill(events, datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)) == expected


def _of_set(reason: str, at: str, message: str = "x") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at}


EARLY, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"
QUOTA = 'pods "s-1" is forbidden: exceeded quota: few, requested: pods=1'


def test_a_sets_pod_is_refused_while_that_is_the_last_that_was_said() -> None:
    said = f"create Pod s-1 in StatefulSet s failed error: {QUOTA}"
    no, made = _of_set("FailedCreate", LATER, said), _of_set("SuccessfulCreate", EARLY)
    assert refused([no, made], None) == QUOTA
    assert refused([{**no, "message": f"(combined from similar events): {said}"}], None) == QUOTA
    assert refused([{**no, "lastTimestamp": EARLY}, made], None) == QUOTA, "one of two was made in that second"
    assert refused([{**no, "lastTimestamp": EARLY}, {**made, "lastTimestamp": LATER}], None) is None
    assert refused([_of_set("Scheduled", LATER)], None) is None


def test_what_is_remembered_of_a_node_answers_as_the_whole_one_and_has_no_images() -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    whole = node("a", taints=[taint], unschedulable=True)
    whole["metadata"]["labels"] = {"gpu": "yes"}
    whole["metadata"]["managedFields"] = [{}]
    whole["status"] |= {"nodeInfo": {"kubeletVersion": "v1.35.0"}, "images": [{"names": ["n"]}]}
    whole["status"]["conditions"] += [{"type": "MemoryPressure"}]
    kept = essentials(whole)
    assert (kept["metadata"], kept["spec"]) == ({"name": "a", "labels": {"gpu": "yes"}}, whole["spec"])
    assert kept["status"] == {
        "allocatable": whole["status"]["allocatable"],
        "nodeInfo": {"kubeletVersion": "v1.35.0"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    assert takes_pods(essentials(node("b"))) and not takes_pods(kept)
    assert essentials({"metadata": {"name": "new"}})["status"] == {"conditions": []}


def test_what_was_said_of_an_earlier_set_of_that_name_does_not_count() -> None:
    no = _of_set("FailedCreate", EARLY, QUOTA)
    assert refused([no], datetime.fromisoformat(LATER)) is None
    assert refused([no], datetime.fromisoformat(EARLY)) == QUOTA
