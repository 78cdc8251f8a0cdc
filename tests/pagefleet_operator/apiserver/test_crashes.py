"""An operator with an error of its own in the passes over one service."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service

pytestmark = pytest.mark.apiserver

_UNLUCKY = 13
_LEVELS = 1_200
"""More than Python reads by itself. The API server takes 10,000, with which it is slow on a busy machine."""
_SECRET = "hf_cannotBeRead"


def break_unlucky_passes() -> None:
    """In the operator's process: passes over a service of 13 sequences end in an error that nobody expects."""
    from pagefleet_operator.reconciling import reconcile

    whole = reconcile.Reconciler._basis

    def broken(self, service, observed, judgement):  # type: ignore[no-untyped-def]
        if service.spec.engine.max_num_seqs == _UNLUCKY:
            raise KeyError(f"{service.name} and {_SECRET}")
        return whole(self, service, observed, judgement)

    reconcile.Reconciler._basis = broken  # type: ignore[method-assign]


def _condition(api: Api, namespace: str, name: str, kind: str) -> Json:
    live = api.get("inferenceservices", namespace, name) or {}
    return next((one for one in live.get("status", {}).get("conditions") or () if one["type"] == kind), {})


def _notes(api: Api, namespace: str) -> list[str]:
    return [event["note"] for event in api.list("events", namespace) if event["reason"] == "InternalError"]


def _crashes(operator: OperatorProcess) -> int:
    return len(operator.events("pass_crashed"))


def _engine(sequences: int) -> Json:
    return {"device": "cpu", "maxNumSeqs": sequences, "kvCache": {"size": "64Mi"}}


def test_a_service_says_that_the_operator_fails_over_it_until_it_does_not(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start(first=break_unlucky_passes, backoff_first_s=0.1).ready()
    api.create("inferenceservices", service(namespace, "lucky"))
    api.create("inferenceservices", service(namespace, "s", engine=_engine(_UNLUCKY)))
    eventually(lambda: _crashes(operator) >= 3, "it is tried again")
    stalled = _condition(api, namespace, "s", "Stalled")
    assert (stalled["status"], stalled["reason"], stalled["observedGeneration"]) == ("True", "InternalError", 1)
    assert "KeyError: 's and …'" in stalled["message"], stalled["message"]
    assert _condition(api, namespace, "s", "Ready")["reason"] == "InternalError"
    eventually(lambda: api.get("deployments", namespace, "lucky"), "the other service is none the worse")
    assert len(eventually(lambda: _notes(api, namespace), "an Event tells it")) == 1
    version = (api.get("inferenceservices", namespace, "s") or {})["metadata"]["resourceVersion"]
    seen = _crashes(operator)
    eventually(lambda: _crashes(operator) > seen, "it is tried once more")
    live = api.get("inferenceservices", namespace, "s") or {}
    assert live["metadata"]["resourceVersion"] == version, "the same crash is written once"
    assert _SECRET not in str(live)
    api.merge("inferenceservices", namespace, "s", {"spec": {"engine": _engine(8)}})
    eventually(lambda: api.get("deployments", namespace, "s"), "a spec over which it does not fail is carried out")
    eventually(lambda: not _condition(api, namespace, "s", "Stalled"), "nothing is said of it any more")
    assert _condition(api, namespace, "s", "Ready")["reason"] != "InternalError"
    assert len(_notes(api, namespace)) == 1


@pytest.fixture
def deep_calls() -> Iterator[None]:
    """This process reads and writes objects of any depth."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(5 * _LEVELS)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("deep_calls")
def test_an_object_too_deep_for_a_plain_python_holds_nobody_up(api: Api, namespace: str, start: Start) -> None:
    inner: dict[str, Any] = {}
    for _ in range(_LEVELS):
        inner = {"a": inner}
    api.create("inferenceservices", service(namespace, "deep", podTemplate={"spec": {"x": inner}}))
    try:
        start().ready()
        eventually(
            lambda: "32 levels deep" in _condition(api, namespace, "deep", "Ready").get("message", ""),
            "one that is there at the start is refused",
        )
        api.merge("inferenceservices", namespace, "deep", {"metadata": {"labels": {"changed": "yes"}}})
        api.create("inferenceservices", service(namespace, "later"))
        eventually(lambda: api.get("deployments", namespace, "later"), "another service comes after its change")
    finally:
        api.delete("inferenceservices", namespace, "deep")
