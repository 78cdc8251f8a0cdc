"""Asks the API server for what the watch cache does not hold, and only while a pod is in trouble.

Watching all nodes and all pods of a cluster would cost the operator more than everything else that it does, for
words that are needed only while a pod waits.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pagefleet_api.reasons import Reason
from pagefleet_operator.cluster import ApiError, Body
from pagefleet_operator.evidence import Evidence, Room
from pagefleet_operator.kinds import NODE, POD, Kind
from pagefleet_operator.observed import Observed, Pod
from pagefleet_operator.problems import PodProblem

log = logging.getLogger(__name__)

_LOOK_LIMIT_S = 3.0
"""A cause is to be told within five seconds: without an answer by then it is told without."""
_FRESH_S = 10.0
_FRESH_PER_LOOK = 20
"""A look that takes long, in a large cluster, is good for longer: looking takes a twentieth of the time at most."""
_FAILED_S = 60.0
_AT_ONCE = 8


class Lister(Protocol):
    """Lists objects; `Cluster` is one."""

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[Body]:
        """Objects of a kind that a field selector takes. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class _Look:
    room: Room | None
    until_s: float


class Inquiry:
    """Finds `Evidence`. `everywhere`: this operator may look at nodes, and at pods of every namespace."""

    def __init__(self, lister: Lister, *, everywhere: bool) -> None:
        self._lister, self._everywhere = lister, everywhere
        self._looks: dict[str, _Look] = {}
        self._looking = asyncio.Lock()

    async def about(self, observed: Observed) -> Evidence:
        """What there is to know about the pods that are in trouble; empty when none is."""
        waiting = sorted({name for pod in _unplaced(observed) for name in pod.extended})
        return Evidence(room=await self.room(waiting[0]) if waiting else None)

    async def room(self, resource: str) -> Room | None:
        """How much of an extended resource is free, as of a moment ago; None when that cannot be told."""
        if not self._everywhere:
            return None
        async with self._looking:
            known = self._looks.get(resource)
            if known is None or time.monotonic() >= known.until_s:
                known = self._looks[resource] = await self._look(resource)
        return known.room

    async def _look(self, resource: str) -> _Look:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                room = await self._count(resource)
        except (ApiError, TimeoutError) as error:
            log.warning("room_unknown", extra={"resource": resource, "error": str(error) or type(error).__name__})
            return _Look(None, time.monotonic() + _FAILED_S)
        now_s = time.monotonic()
        return _Look(room, now_s + max(_FRESH_S, _FRESH_PER_LOOK * (now_s - began_s)))

    async def _count(self, resource: str) -> Room:
        """Pods are listed node by node, by the one field that the API server has an index for."""
        nodes = await self._lister.items(NODE, None)
        having = iter(sorted(Room.of(resource, nodes, ()).free_by_node))
        pods: list[Body] = []

        async def take(names: Iterator[str]) -> None:
            try:
                for name in names:
                    pods.extend(await self._lister.items(POD, None, fields=f"spec.nodeName={name}"))
            finally:
                deque(names, maxlen=0)  # of what failed once, the rest is of no use

        await asyncio.gather(*(take(having) for _ in range(_AT_ONCE)))
        return Room.of(resource, nodes, pods)


def _unplaced(observed: Observed) -> Iterator[Pod]:
    """Pods that the scheduler finds no node for."""
    for pod in observed.pods:
        if pod.active and _is(pod.problem, Reason.UNSCHEDULABLE):
            yield pod


def _is(problem: PodProblem | None, reason: Reason) -> bool:
    return problem is not None and problem.reason is reason
