"""What is asked for only while a pod is in trouble."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.apiserver import inquiry
from pagefleet_operator.apiserver.inquiry import Inquiry
from pagefleet_operator.facts.observed import DeploymentView, Evidence, Observed, Pod, PodProblem, Warned
from pagefleet_operator.facts.starts import Start
from pagefleet_operator.kinds import Kind
from tests.pagefleet_operator.observed.test_evidence import GPU, LIVENESS, event, node, pod

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
WAITS = Pod(name="p", uid="u", extended={GPU: 1}, problem=PodProblem(Reason.UNSCHEDULABLE, "full"))


PLACED = [("one", "in-pool"), ("two", "in-pool"), ("three", "bare"), ("four", "gone"), ("five", None)]
POOLED: dict[str, dict[str, Any]] = {
    "in-pool": {"metadata": {"name": "in-pool", "labels": {"karpenter.sh/nodepool": "h200"}}},
    "bare": {"metadata": {"name": "bare"}},
}


class Lister:
    """Two nodes with GPUs and a pod on each."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: api.ApiError | None = None
        self.events: list[dict[str, Any]] = []

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[dict[str, Any]]:
        self.asked.append(f"{kind.plural} {fields}".strip())
        if self.error is not None:
            raise self.error
        if kind.name == "Node" and fields:
            return [POOLED[name] for name in [fields.removeprefix("metadata.name=")] if name in POOLED]
        if kind.name == "Node":
            return [node("a"), node("b"), node("cpus", None)]
        if kind.name == "Event":
            assert namespace == "n"
            return self.events
        return [pod(fields.removeprefix("spec.nodeName="), 3)]


async def test_nobody_is_asked_while_no_pod_waits() -> None:
    lister = Lister()
    sound, other = Pod(name="p", uid="u", ready=True), Pod(name="q", uid="q", problem=PodProblem(Reason.STARTING, "x"))
    assert await Inquiry(lister, everywhere=True).about("n", Observed(pods=(sound, other)), NOW) == Evidence()
    assert lister.asked == []


async def test_a_pod_that_waits_for_a_gpu_brings_one_look_that_serves_many() -> None:
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    for _ in range(3):
        found = (await asks.about("n", Observed(pods=(WAITS,)), NOW)).room
        assert found is not None and found.free_by_node == {"a": 5, "b": 5}
    assert sorted(lister.asked) == ["nodes", "pods spec.nodeName=a", "pods spec.nodeName=b"]


async def test_a_look_is_old_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_FRESH_S", 0)
    monkeypatch.setattr(inquiry, "_FRESH_PER_LOOK", 0)
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    assert await asks.room(GPU) == await asks.room(GPU)
    assert lister.asked.count("nodes") == 2


async def test_a_pods_pool_is_its_nodes_and_a_node_is_asked_for_once() -> None:
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    pods = tuple(Pod(name=name, uid=name, node=node, ready=True) for name, node in PLACED)
    for _ in range(2):
        assert (await asks.about("n", Observed(pods=pods), NOW)).pools == {"one": "h200", "two": "h200"}
    assert sorted(lister.asked) == [f"nodes metadata.name={name}" for name in ("bare", "gone", "in-pool")]


async def test_only_pods_whose_start_may_still_count_bring_a_question() -> None:
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    long_ago, lately = NOW - timedelta(hours=1), NOW - timedelta(seconds=9)
    serves = Pod(name="one", uid="one", node="in-pool", ready=True, start=Start(ready=long_ago))
    assert (await asks.about("n", Observed(pods=(serves,)), NOW)).pools == {}
    assert lister.asked == []
    came = Pod(name="two", uid="two", node="in-pool", ready=True, start=Start(ready=lately))
    assert (await asks.about("n", Observed(pods=(serves, came)), NOW)).pools == {"one": "h200", "two": "h200"}


async def test_a_node_may_get_its_labels_after_its_first_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_FAILED_S", 0)
    asks = Inquiry(Lister(), everywhere=True)
    seen = Observed(pods=(Pod(name="one", uid="one", node="bare"),))
    assert (await asks.about("n", seen, NOW)).pools == {}
    labelled = {"metadata": {"name": "bare", "labels": {"nvidia.com/gpu.product": "H200"}}}
    monkeypatch.setitem(POOLED, "bare", labelled)
    assert (await asks.about("n", seen, NOW)).pools == {"one": "H200"}


async def test_a_node_that_cannot_be_read_is_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    lister = Lister()
    lister.error = api.Refused("nodes is forbidden")
    asks = Inquiry(lister, everywhere=True)
    seen = Observed(pods=(Pod(name="one", uid="one", node="in-pool"),))
    for _ in range(2):
        assert (await asks.about("n", seen, NOW)).pools == {}
    assert len(lister.asked) == 1
    monkeypatch.setattr(inquiry, "_FAILED_S", 0)
    asks = Inquiry(lister, everywhere=True)
    await asks.about("n", seen, NOW)
    lister.error = None
    assert (await asks.about("n", seen, NOW)).pools == {"one": "h200"}


async def test_of_very_many_nodes_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_REMEMBERED", 1)
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    for name in ("bare", "in-pool", "bare"):
        await asks.about("n", Observed(pods=(Pod(name="one", uid="one", node=name),)), NOW)
    assert lister.asked.count("nodes metadata.name=bare") == 2


async def test_an_operator_of_some_namespaces_asks_for_no_nodes() -> None:
    lister = Lister()
    placed = Pod(name="one", uid="one", node="in-pool")
    assert await Inquiry(lister, everywhere=False).about("n", Observed(pods=(WAITS, placed)), NOW) == Evidence()
    assert lister.asked == []


async def test_a_refusal_costs_the_words_and_is_not_tried_again_at_once() -> None:
    lister = Lister()
    lister.error = api.Refused("nodes is forbidden")
    asks = Inquiry(lister, everywhere=True)
    assert await asks.room(GPU) is None
    assert await asks.room(GPU) is None
    assert lister.asked == ["nodes"]


def creating(for_s: float, name: str = "p") -> Pod:
    since = NOW - timedelta(seconds=for_s)
    return Pod(name=name, uid=name, creating=since, problem=PodProblem(Reason.STARTING, "being created"))


async def test_a_container_that_is_not_made_soon_is_asked_about() -> None:
    lister = Lister()
    lister.events = [event("FailedMount", 1, "no such claim")]
    asks = Inquiry(lister, everywhere=False)
    assert await asks.about("n", Observed(pods=(creating(1),)), NOW) == Evidence()
    assert lister.asked == []
    found = await asks.about("n", Observed(pods=(creating(3),)), NOW)
    assert found.warnings == {"p": Warned("FailedMount", "no such claim")}
    assert await asks.about("n", Observed(pods=(creating(3),)), NOW) == found
    assert lister.asked == ["events involvedObject.uid=p"]


async def test_of_many_pods_in_the_same_trouble_three_are_asked_about() -> None:
    lister = Lister()
    pods = tuple(creating(60, f"p{number}") for number in range(9))
    assert await Inquiry(lister, everywhere=False).about("n", Observed(pods=pods), NOW) == Evidence()
    assert len(lister.asked) == 3


async def test_tries_of_an_image_are_counted() -> None:
    lister = Lister()
    lister.events = [event("Pulling", 1, count=3)]
    pulling = Pod(name="p", uid="p", problem=PodProblem(Reason.IMAGE_PULL_FAILED, "not found"))
    gone = Pod(name="q", uid="q", terminating=True, problem=pulling.problem)
    found = await Inquiry(lister, everywhere=False).about("n", Observed(pods=(pulling, gone)), NOW)
    assert found.pulls == {"p": 3}
    assert lister.asked == ["events involvedObject.uid=p"]


async def test_a_probe_that_ended_an_engine_is_found() -> None:
    lister = Lister()
    lister.events = [event("Killing", 5, LIVENESS)]
    crash = PodProblem(Reason.CRASH_LOOP, "exit code 0", NOW)
    pods = (Pod(name="p", uid="p", problem=crash), Pod(name="q", uid="q", problem=replace(crash, since=None)))
    found = await Inquiry(lister, everywhere=False).about("n", Observed(pods=pods), NOW)
    assert found.kills == {"p": LIVENESS}


async def test_events_that_cannot_be_read_cost_the_words_alone() -> None:
    lister = Lister()
    lister.error = api.Refused("events is forbidden")
    asks = Inquiry(lister, everywhere=False)
    for _ in range(2):
        assert await asks.about("n", Observed(pods=(creating(9),)), NOW) == Evidence()
    assert lister.asked == ["events involvedObject.uid=p"]


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_REMEMBERED", 1)
    lister = Lister()
    asks = Inquiry(lister, everywhere=False)
    for name in ("a", "b", "a"):
        await asks.about("n", Observed(pods=(creating(60, name),)), NOW)
    assert len(lister.asked) == 3


async def test_names_of_resources_that_nobody_asks_about_any_more_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_FRESH_S", 0)
    monkeypatch.setattr(inquiry, "_FRESH_PER_LOOK", 0)
    monkeypatch.setattr(Lister, "items", _nothing)
    asks = Inquiry(Lister(), everywhere=True)
    for number in range(1000):
        await asks.room(f"example.com/{number}")
    assert list(asks._looks) == ["example.com/999"]


async def _nothing(_self: Lister, _kind: Kind, _namespace: str | None, *, fields: str = "") -> list[dict[str, Any]]:
    return []


async def test_why_a_groups_pods_are_not_made_is_asked_of_the_sets_that_lack_them() -> None:
    lister = Lister()
    words = 'pods "s-1" is forbidden: exceeded quota: few'
    lister.events = [{"reason": "FailedCreate", "message": words, "lastTimestamp": "2026-01-01T00:00:30Z"}]
    view = DeploymentView(name="s", replicas=2, group_size=1)
    first = Pod(name="s-0", uid="s-0", group=0, ready=True)
    short = Observed(deployment=view, pods=(first,), grouped=True)
    asks = Inquiry(lister, everywhere=False)
    for _ in range(2):
        assert (await asks.about("n", short, NOW)).refused == words
    assert lister.asked == ["events involvedObject.kind=StatefulSet,involvedObject.name=s"]
    whole = replace(short, pods=(first, Pod(name="s-1", uid="s-1", group=1, ready=True)))
    assert (await asks.about("n", whole, NOW)).refused is None
    assert (await asks.about("n", short, NOW + timedelta(seconds=1))).refused is None, (
        "said of a pod that came, or went"
    )
    lister.events[0]["lastTimestamp"] = (NOW - timedelta(seconds=2)).isoformat()
    assert (await asks.about("n", short, NOW + timedelta(seconds=1))).refused == words
    lister.events = []
    assert (await Inquiry(lister, everywhere=False).about("n", short, NOW)).refused is None


async def test_what_is_asked_again_and_again_is_asked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    lister, clock = Lister(), [1000.0]
    monkeypatch.setattr(inquiry, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    asks = Inquiry(lister, everywhere=False)
    short = Observed(deployment=DeploymentView(name="s", replicas=1), grouped=True)
    asked: list[int] = []
    for second in range(240):
        clock[0] = 1000.0 + second
        await asks.about("n", short, NOW)
        asked += [second] if len(lister.asked) > len(asked) else []
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert (pauses[0], pauses[-1]) == (2, 30) and pauses == sorted(pauses), pauses
    clock[0] += 100
    for _ in range(3):
        await asks.about("n", short, NOW)
        clock[0] += 2
    assert len(lister.asked) == len(asked) + 3, "it is another lack"
