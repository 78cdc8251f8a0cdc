"""Node drains: the budget that a service has, and that its only pod never holds a node."""

import pytest

from tests.pagefleet_operator.apiserver.api import Api, Json, eventually
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import service

pytestmark = pytest.mark.apiserver


def _budget(api: Api, namespace: str) -> Json | None:
    return api.get("poddisruptionbudgets", namespace, "s")


def _allowed(api: Api, namespace: str) -> int | None:
    """Evictions that the budget's controller allows now; None before it has looked."""
    budget = _budget(api, namespace) or {}
    status = budget.get("status", {})
    current = status.get("observedGeneration") == budget.get("metadata", {}).get("generation")
    return status.get("disruptionsAllowed") if current else None


def test_evictions_take_one_pod_at_a_time_and_the_budget_goes_with_the_second_replica(
    api: Api, namespace: str, start: Start
) -> None:
    operator = start().ready()
    with Fleet(api, namespace, start_delay_s=1.0) as fleet:
        api.create("inferenceservices", service(namespace, replicas=3))
        eventually(lambda: _allowed(api, namespace) == 1, "one may go")
        first, second, _ = (str(pod["metadata"]["name"]) for pod in fleet.pods())
        assert api.evict(namespace, first)
        assert not api.evict(namespace, second), "the next one waits for the replacement"
        eventually(lambda: _allowed(api, namespace) == 1, "the replacement serves")
        api.merge("inferenceservices", namespace, "s", {"spec": {"replicas": 1}}, "scale")
        eventually(lambda: _budget(api, namespace) is None, "the only pod has no budget")
        eventually(lambda: len(fleet.pods()) == 1, "one pod is left")
        assert api.evict(namespace, fleet.serving()[0]), "it never holds its node"
        eventually(lambda: len(fleet.serving()) == 1, "it was replaced")
        assert len(operator.events("child_removed")) == 1
        assert not operator.events("pass_crashed")


def test_a_budget_of_somebody_else_is_left_alone(api: Api, namespace: str, start: Start) -> None:
    start().ready()
    with Fleet(api, namespace) as fleet:
        theirs = {"metadata": {"name": "s", "namespace": namespace}, "spec": {"maxUnavailable": 1}}
        api.create("poddisruptionbudgets", theirs)
        api.create("inferenceservices", service(namespace, replicas=1))
        eventually(lambda: len(fleet.serving()) == 1, "the service is there")
        assert "ownerReferences" not in (_budget(api, namespace) or {})["metadata"]
