"""Short ways to write services and outcomes down in status tests."""

from dataclasses import replace
from typing import Any

from pagefleet_api.service import InferenceService
from pagefleet_api.status import Condition, Status
from pagefleet_operator.autoscaling import Fleet, Outcome
from pagefleet_operator.facts.observed import Now, Observed
from pagefleet_operator.status import Scene, service_status
from pagefleet_operator.supplies import Supply
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, at, decide, fleet, ready

__all__ = ["at", "condition", "fleet", "outcome", "ready", "service", "status", "supplied"]

POLICY = replace(DEFAULTS, max_replicas=6)


def service(generation: int = 3, **spec: Any) -> InferenceService:
    """A service called llama in the namespace team."""
    meta = {"namespace": "team", "name": "llama", "uid": "u", "generation": generation}
    return InferenceService.parse({"metadata": meta, "spec": {"model": {"uri": "pkg://m"}, **spec}})


def autoscaled(**spec: Any) -> InferenceService:
    """The same with an autoscaler."""
    return service(autoscaling={"maxReplicas": 6}, **spec)


def outcome(pods: Fleet, *, before: int | None = None, now_s: float = 0.0) -> Outcome:
    """What the autoscaler says of these pods."""
    return decide(pods, POLICY, before=before, now_s=now_s)


def status(
    seen: Observed,
    wanted: int,
    *,
    of: InferenceService | None = None,
    scaled: Outcome | None = None,
    previous: Status | None = None,
    now: Now | None = None,
    **trouble: Any,
) -> Status:
    """The status of a service with fixed replicas, unless `scaled` is given."""
    starts = trouble.pop("starts", None)
    chosen = of or (service() if scaled is None else autoscaled())
    scene = Scene(chosen, seen, wanted, now or at(0), scaled, **trouble)
    return service_status(scene, previous or Status(), starts)


def supplied(seen: Observed, supply: Supply, **trouble: Any) -> Status:
    """The status of a service with one pod wanted and this supply."""
    lacks = () if supply.lack is None else (supply.lack,)
    return status(seen, 1, lacks=lacks, cached=supply.cached, **trouble)


def condition(found: Status, kind: str) -> Condition | None:
    """One condition by its type."""
    return next((one for one in found.conditions if one.type == kind), None)
