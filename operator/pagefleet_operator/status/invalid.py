"""What a service says whose spec cannot be used: what runs goes on, and is told of."""

from collections.abc import Sequence
from typing import NamedTuple

from pagefleet_api.reasons import ConditionType, Reason
from pagefleet_api.status import Condition, Status
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.facts.observed import Now, Pod
from pagefleet_operator.status.conditions import dated, draining, serve, serving

_RETOLD = (ConditionType.READY, ConditionType.STALLED, ConditionType.RECONCILING)


class Invalid(NamedTuple):
    """A spec that cannot be used."""

    words: str
    """They name each field and what it takes."""
    generation: int


def invalid_status(invalid: Invalid, seen: Status, previous: Status, now: Now) -> Status:
    """The status of an object that cannot be parsed; `seen` is what it is by the spec before, or `counted_status`.

    As ever, Ready is True while some pod serves.
    """
    words, generation = invalid
    goes_on = [f"what ran before goes on: {one.message}" for one in seen.conditions if one.type == ConditionType.READY]
    found = {
        ConditionType.READY: Verdict(seen.ready_replicas > 0, Reason.INVALID_SPEC, "\n".join((words, *goes_on))),
        ConditionType.STALLED: Verdict(True, Reason.INVALID_SPEC, "the spec cannot be used; see Ready"),
    }
    kept = [
        condition.model_copy(update={"observed_generation": generation})
        for condition in seen.conditions
        if condition.type not in _RETOLD
    ]
    conditions = (*dated(found, generation, previous.conditions, now), *kept)
    return seen.model_copy(update={"observed_generation": generation, "conditions": conditions})


def counted_status(pods: Sequence[Pod], previous: Status, now: Now) -> Status:
    """Of a service whose spec before nobody remembers: its pods are counted, all else stays as it was told."""
    there = serving(pods)
    ready = sum(pod.ready for pod in there)
    wanted = _wanted(previous, len(there))
    conditions: tuple[Condition, ...] = tuple(one for one in previous.conditions if one.type not in _RETOLD)
    if pods:
        words = f"{serve(ready, wanted)}; the operator changes nothing about them until the spec can be read again"
        told = {ConditionType.READY: Verdict(ready > 0, Reason.SERVING, words)}
        conditions = (*dated(told, previous.observed_generation or 0, previous.conditions, now), *conditions)
    counts = {"replicas": len(there), "ready_replicas": ready, "draining_replicas": len(draining(pods))}
    ready_of_wanted = f"{ready}/{wanted}" if pods or previous.ready else None
    return previous.model_copy(update={**counts, "ready": ready_of_wanted, "conditions": conditions})


def _wanted(previous: Status, there: int) -> int:
    """As it was told last; of a service that told nothing yet as many as there are."""
    told = (previous.ready or "").partition("/")[2]
    return int(told) if told.isdigit() else there
