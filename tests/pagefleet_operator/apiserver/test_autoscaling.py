"""What the autoscaler does beside following the load, by a real operator: a full cluster, latencies, the clock."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import NO_ROOM, Fleet
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver


def _scaled(namespace: str, name: str, **scaling: Any) -> Json:
    down = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    whole = {"minReplicas": 1, "maxReplicas": 6, "behavior": down, **scaling}
    return service(namespace, name, autoscaling=whole, drain={"timeoutSeconds": 60})


def _replicas(api: Api, namespace: str, name: str) -> int:
    found = api.get("deployments", namespace, name)
    return int(found["spec"]["replicas"]) if found else 0


def _status(api: Api, namespace: str, name: str) -> Json:
    found: Json = (api.get("inferenceservices", namespace, name) or {}).get("status", {})
    return found


def _limited(api: Api, namespace: str, name: str) -> tuple[str, str]:
    conditions = _status(api, namespace, name).get("conditions", [])
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == "ScalingLimited"), ("", ""))


def _notes(api: Api, namespace: str, reason: str) -> list[str]:
    return [event["note"] for event in api.list("events", namespace) if event["reason"] == reason]


def _of(fleet: Fleet, name: str) -> list[str]:
    return [pod for pod in fleet.serving() if pod.startswith(f"{name}-")]


def test_a_full_cluster_is_asked_for_no_more_and_the_higher_priority_gets_the_next_room(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    with Fleet(api, namespace) as fleet:
        fleet.room = 2
        api.create("inferenceservices", _scaled(namespace, "low"))
        eventually(lambda: len(_of(fleet, "low")) == 1, "one pod serves")
        fleet.set_load(running=8, waiting=12)
        eventually(lambda: _limited(api, namespace, "low")[0] == "ClusterCapacity", "it is said that there is no room")
        assert NO_ROOM in _limited(api, namespace, "low")[1]
        assert (_replicas(api, namespace, "low"), len(_of(fleet, "low"))) == (3, 2)
        served = _of(fleet, "low")
        fleet.engines[served[0]].waiting = 20
        never(lambda: _replicas(api, namespace, "low") > 3, "more was asked of a full cluster", 2)
        api.create("inferenceservices", _scaled(namespace, "high", priority=10))
        eventually(lambda: _replicas(api, namespace, "low") == 2, "the lesser service gives its waiting pod up")
        eventually(lambda: _limited(api, namespace, "low")[0] == "YieldsRoom", "and says why")
        fleet.room = 3
        eventually(lambda: len(_of(fleet, "high")) == 1, "the next room is the higher one's")
        assert _of(fleet, "low") == served
        fleet.room = None
        eventually(lambda: _replicas(api, namespace, "low") > 3, "growth goes on when there is room")
        free = ("DesiredWithinRange", "TooManyReplicas")
        eventually(lambda: _limited(api, namespace, "low")[0] in free, "nothing is said of room any more")
        eventually(lambda: "coldStart" in _status(api, namespace, "low"), "starts are measured", 40)
        cold = _status(api, namespace, "low")["coldStart"]
        assert operator.metric("pagefleet_cold_start_seconds_count", phase="image") >= cold["starts"]
        assert cold["phases"]["warmUpSeconds"] <= cold["p95Seconds"] <= 20


def test_latency_the_clock_and_a_dry_run_are_followed_as_they_say(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    latency = {"metrics": [{"type": "TimeToFirstToken", "target": {"p95": "200ms"}}]}
    always = {"name": "always", "timezone": "Asia/Kolkata", "start": "00:00", "end": "24:00", "minReplicas": 2}
    with Fleet(api, namespace) as fleet:
        api.create("inferenceservices", _scaled(namespace, "slow", **latency))
        api.create("inferenceservices", _scaled(namespace, "office", schedules=[always]))
        api.create("inferenceservices", _scaled(namespace, "rehearsed", mode="Recommend"))
        eventually(lambda: len(_of(fleet, "slow")) == 1 and len(_of(fleet, "rehearsed")) == 1, "pods serve")
        eventually(lambda: len(_of(fleet, "office")) == 2, "the schedule's pods serve")
        assert "always until 24:00 Asia/Kolkata: minReplicas is 2" in _notes(api, namespace, "ScaledUp")[0]
        (busy,) = _of(fleet, "rehearsed")
        fleet.engines[busy].running, fleet.engines[busy].waiting = 8, 12
        (slow,) = _of(fleet, "slow")
        eventually(lambda: "?" in _status(api, namespace, "slow").get("targets", ""), "no latency is known yet")
        eventually(lambda: _measured(fleet, slow, api, namespace), "long first tokens raise the number", 20)

        def recommended() -> Json | None:
            status = _status(api, namespace, "rehearsed").get("autoscaling", {})
            return status if status.get("desiredReplicas") == 3 else None

        eventually(recommended, "the recommendation is in the status")
        assert _replicas(api, namespace, "rehearsed") == 1
        assert "Would scale from 1 to 3" in _notes(api, namespace, "Recommended")[0]


@pytest.fixture
def pooled_node(api: Api) -> Iterator[str]:
    """A node of a pool of GKE's."""
    labels = {"cloud.google.com/gke-nodepool": "gpus", "node.kubernetes.io/instance-type": "a3-highgpu-1g"}
    api.create("nodes", {"metadata": {"name": "pooled", "labels": labels}})
    yield "pooled"
    api.delete("nodes", None, "pooled")


def test_starts_are_told_by_the_pool_of_the_pods_node(api: Api, namespace: str, start: Start, pooled_node: str) -> None:
    start(flags=("--read-model-secrets",)).ready()  # of all namespaces: others may not look at nodes
    with Fleet(api, namespace, start_delay_s=1) as fleet:
        fleet.node = pooled_node
        api.create("inferenceservices", service(namespace, replicas=2))
        eventually(lambda: len(_of(fleet, "s")) == 2, "both pods serve")

        def starts() -> list[tuple[str, int]]:
            pools = _status(api, namespace, "s").get("coldStart", {}).get("pools", [])
            return [(pool["pool"], pool["starts"]) for pool in pools]

        eventually(lambda: starts() == [("gpus", 2)], "both starts are counted in the node's pool", 40)


def _measured(fleet: Fleet, slow: str, api: Api, namespace: str) -> bool:
    """More requests that waited for a second, until the number has followed."""
    fleet.engines[slow].answers.add(10, ttft_s=1.0)
    return _replicas(api, namespace, "slow") == 2
