"""What is asked for only while a pod is in trouble."""

from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_operator import cluster as api
from pagefleet_operator import inquiry
from pagefleet_operator.inquiry import Inquiry
from pagefleet_operator.kinds import Kind
from pagefleet_operator.observed import Evidence, Observed, Pod, PodProblem
from tests.pagefleet_operator.observed.test_evidence import GPU, node, pod

WAITS = Pod(name="p", uid="u", extended={GPU: 1}, problem=PodProblem(Reason.UNSCHEDULABLE, "full"))


class Lister:
    """Two nodes with GPUs and a pod on each."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: api.ApiError | None = None

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[dict[str, Any]]:
        self.asked.append(f"{kind.plural} {fields}".strip())
        if self.error is not None:
            raise self.error
        if kind.name == "Node":
            return [node("a"), node("b"), node("cpus", None)]
        return [pod(fields.removeprefix("spec.nodeName="), 3)]


async def test_nobody_is_asked_while_no_pod_waits() -> None:
    lister = Lister()
    sound, other = Pod(name="p", uid="u", ready=True), Pod(name="q", uid="q", problem=PodProblem(Reason.STARTING, "x"))
    assert await Inquiry(lister, everywhere=True).about(Observed(pods=(sound, other))) == Evidence()
    assert lister.asked == []


async def test_a_pod_that_waits_for_a_gpu_brings_one_look_that_serves_many() -> None:
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    for _ in range(3):
        found = (await asks.about(Observed(pods=(WAITS,)))).room
        assert found is not None and found.free_by_node == {"a": 5, "b": 5}
    assert sorted(lister.asked) == ["nodes", "pods spec.nodeName=a", "pods spec.nodeName=b"]


async def test_a_look_is_old_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "_FRESH_S", 0)
    monkeypatch.setattr(inquiry, "_FRESH_PER_LOOK", 0)
    lister = Lister()
    asks = Inquiry(lister, everywhere=True)
    assert await asks.room(GPU) == await asks.room(GPU)
    assert lister.asked.count("nodes") == 2


async def test_an_operator_of_some_namespaces_asks_for_no_nodes() -> None:
    lister = Lister()
    assert await Inquiry(lister, everywhere=False).about(Observed(pods=(WAITS,))) == Evidence()
    assert lister.asked == []


async def test_a_refusal_costs_the_words_and_is_not_tried_again_at_once() -> None:
    lister = Lister()
    lister.error = api.Refused("nodes is forbidden")
    asks = Inquiry(lister, everywhere=True)
    assert await asks.room(GPU) is None
    assert await asks.room(GPU) is None
    assert lister.asked == ["nodes"]
