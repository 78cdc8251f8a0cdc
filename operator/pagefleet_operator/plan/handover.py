"""One kind of workload follows the other: how many replicas each of them has meanwhile. Pure.

As a Deployment does between two of its ReplicaSets (`rolloutRolling` in kubernetes/pkg/controller/deployment): no more
replicas than are wanted and may be above, no fewer ready ones than are wanted less those that may be missing. Two
things are different. A replica of the one may need the room of several of the other, and one group is begun after the
other where they have to wait for room: two halves of groups would keep it from each other.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from pagefleet_api.schema import AUTO
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.observed import Observed, Pod
from pagefleet_operator.plan.rollout import RollingUpdate


class Handover(NamedTuple):
    """The replicas of the workload that follows, and those that the one before it keeps."""

    successor: int
    predecessor: int


def hand_over(
    service: InferenceService, observed: Observed, wanted: int, rolling: RollingUpdate, *, before: int, after: int
) -> Handover:
    """The next step, from so many replicas `before` and `after`.

    None of those before goes for one that has found no place, but for what `rolling` gives up. Where that is ours to
    choose (`maxUnavailable: Auto`) it is the room of one replica after the other, once that helps. It helps nobody
    where no node could take those that follow, as their selector matches none or none is large enough, or all nodes
    together have too few GPUs: one of them waits, and tells why.
    """
    ready = sum(pod.ready and pod.serving for pod in _of_kind(observed, grouped=service.spec.in_groups))
    room = _room_of_one(service, observed)
    surge, missing = _number(rolling.max_surge, wanted, math.ceil), _number(rolling.max_unavailable, wanted, math.floor)
    if missing and service.spec.rollout.max_unavailable == AUTO:
        hopeless = observed.knowledge.placeable is False or _too_few_gpus(service, observed)
        missing = 0 if hopeless else _given_up(service, observed, wanted, room + (room - 1) * ready)
        surge, starts = max(surge, 1) if hopeless else surge, max(surge, 1)
    else:
        missing = missing if surge else max(missing, 1)
        starts = surge + max(missing // room, 0 if surge else 1)
    stay = _kept(service, observed, wanted - missing, ready, before)
    return Handover(min(wanted, max(after, min(wanted + surge - stay, ready + starts))), stay)


def _too_few_gpus(service: InferenceService, observed: Observed) -> bool:
    """Whether one of those that follow asks for more GPUs than all nodes have, free or not, as far as that is known."""
    spec, room = service.spec, observed.evidence.room
    needed = spec.gpu_count * spec.engine.parallelism.pipeline
    return room is not None and room.resource == spec.resources.gpu.resource_name and room.allocatable < needed


def _given_up(service: InferenceService, observed: Observed, wanted: int, needed: int) -> int:
    """Of the `needed` ones for the next that follows: all but one while none of those has found a place, as something
    that only the scheduler knows may keep them from every node.
    """
    follow = (pod for pod in (*observed.pods, *observed.workers) if (pod.group is not None) == service.spec.in_groups)
    return needed if any(pod.active and pod.node for pod in follow) else max(min(needed, wanted - 1), 1)


def _kept(service: InferenceService, observed: Observed, needed: int, ready: int, before: int) -> int:
    """As few as leave `needed` ready ones with those that follow, or all that are ready while these are too few."""
    grouped = not service.spec.in_groups
    sound = [pod for pod in _of_kind(observed, grouped=grouped) if pod.ready]
    for kept in range(before):
        left = sum(pod.group is None or pod.group < kept for pod in sound)
        left = left if grouped else min(left, kept)
        if kept + ready >= needed and left + ready >= min(needed, len(sound) + ready):
            return kept
    return before


def _room_of_one(service: InferenceService, observed: Observed) -> int:
    """So many replicas of the workload before have the room of one that follows, 1 at least."""
    spec = service.spec
    resource, size = spec.resources.gpu.resource_name, spec.engine.parallelism.pipeline
    earlier = [observed.replica(pod) for pod in _of_kind(observed, grouped=not spec.in_groups)]
    gpus = max((sum(pod.extended.get(resource, 0) for pod in replica) for replica in earlier), default=0)
    pods = max((len(replica) for replica in earlier), default=1)
    return math.ceil(spec.gpu_count * size / gpus) if gpus and spec.gpu_count else math.ceil(size / pods)


def _of_kind(observed: Observed, *, grouped: bool) -> list[Pod]:
    return [pod for pod in observed.pods if pod.active and (pod.group is not None) == grouped]


def _number(share: int | str, wanted: int, rounded: Callable[[float], int]) -> int:
    return share if isinstance(share, int) else rounded(int(share.removesuffix("%")) * wanted / 100)
