"""Asks the API server for what the watch cache does not hold, and only while a pod starts or is in trouble.

Watching all nodes and all pods of a cluster would cost the operator more than everything else that it does, for
words that are needed only while a pod waits.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from pagefleet_api.reasons import Reason
from pagefleet_operator.apiserver.cluster import ApiError, Body
from pagefleet_operator.facts.evidence import (
    Evidence,
    Room,
    Warned,
    allocatable_on,
    probe_kill,
    pulls,
    refused,
    taken_by,
)
from pagefleet_operator.facts.observed import Observed, Pod
from pagefleet_operator.facts.pools import pool_of
from pagefleet_operator.facts.starts import PATIENCE
from pagefleet_operator.kinds import NODE, POD, POD_EVENT, Kind
from pagefleet_operator.plan import groups
from pagefleet_operator.remembered import Remembered

log = logging.getLogger(__name__)

_LOOK_LIMIT_S = 3.0
"""A cause is to be told within five seconds: without an answer by then it is told without."""
_FRESH_S = 10.0
_FRESH_PER_LOOK = 20
"""A look that takes long, in a large cluster, is good for longer: looking takes a twentieth of the time at most."""
_FAILED_S = 60.0
_AT_ONCE = 8
_PATIENCE_S = 2.0
"""A container is made within this time when nothing hinders it."""
_WORDS_FRESH_S = 2.0
_WORDS_FRESH_PER_AGE = 0.5
"""What hinders a pod comes early; of one that is old already, the latest words are good for a part of its age."""
_WORDS_FRESH_CAP_S = 30.0
_PODS_ASKED = 3
"""Of many pods in the same trouble a few tell it."""
_REMEMBERED = 1000
_LAG = timedelta(seconds=5)
"""By so much what is seen here may be later than what it is about, and clocks apart."""
_COUNTED = 2 * PATIENCE
"""So long after it was ready at the latest, a pod's start has been counted."""


class Lister(Protocol):
    """Lists objects; `Cluster` is one."""

    async def items(self, kind: Kind, namespace: str | None, *, fields: str = "") -> list[Body]:
        """Objects of a kind that a field selector takes. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class _Look:
    room: Room | None
    until_s: float


@dataclass(frozen=True, slots=True)
class _Words:
    events: list[Body]
    until_s: float
    since_s: float
    """Since then they are asked for again and again."""


@dataclass(frozen=True, slots=True)
class _NodePool:
    name: str | None
    until_s: float


class Inquiry:
    """Finds `Evidence`. `everywhere`: this operator may look at nodes, and at pods of every namespace."""

    def __init__(self, lister: Lister, *, everywhere: bool) -> None:
        self._lister, self._everywhere = lister, everywhere
        self._looks: dict[str, _Look] = {}
        self._looking = asyncio.Lock()
        self._words: dict[str, _Words] = Remembered(_REMEMBERED)
        self._pools: dict[str, _NodePool] = Remembered(_REMEMBERED)
        self._whole: dict[str, datetime] = Remembered(_REMEMBERED)
        """When no pod of a set's groups was missing, last."""

    async def about(self, namespace: str, observed: Observed, now: datetime) -> Evidence:
        """What there is to know about the pods that are in trouble; empty when none is."""
        active = [pod for pod in (*observed.pods, *observed.workers) if pod.active]
        waiting = sorted({name for pod in active if _is(pod, Reason.UNSCHEDULABLE) for name in pod.extended})
        pulling = [pod for pod in active if _is(pod, Reason.IMAGE_PULL_FAILED)][:_PODS_ASKED]
        creating = [pod for pod in active if pod.creating and _age_s(pod, now) >= _PATIENCE_S][:_PODS_ASKED]
        crashed = [pod for pod in active if _is(pod, Reason.CRASH_LOOP)][:_PODS_ASKED]
        asked = {pod.uid: pod for pod in (*pulling, *creating, *crashed)}
        answers = await asyncio.gather(*(self._events(namespace, pod, now) for pod in asked.values()))
        said = dict(zip(asked, answers, strict=True))
        latest = {pod.uid: Warned.latest(said[pod.uid]) for pod in creating}
        return Evidence(
            room=await self.room(waiting[0]) if waiting else None,
            warnings={uid: warned for uid, warned in latest.items() if warned is not None},
            pulls={pod.uid: times for pod in pulling if (times := pulls(said[pod.uid]))},
            kills={pod.uid: words for pod in crashed if (words := _kill(pod, said[pod.uid]))},
            refused=await self._refused(namespace, observed, now),
            pools=await self._pools_of(active, now),
        )

    async def _pools_of(self, pods: Sequence[Pod], now: datetime) -> dict[str, str]:
        """The pools of the pods' nodes, by pod uid. A node is asked for once it has a pod whose start may count, and
        not again, as its pool is for its life.
        """
        if not self._everywhere:
            return {}
        now_s = time.monotonic()
        starting = {pod.node for pod in pods if pod.node is not None and _starts(pod, now)}
        unknown = [node for node in starting if node not in self._pools or now_s >= self._pools[node].until_s]
        await asyncio.gather(*(self._learn_pool(node) for node in sorted(unknown)))
        found = {pod.uid: self._pools[pod.node].name for pod in pods if pod.node in self._pools}
        return {uid: name for uid, name in found.items() if name is not None}

    async def _learn_pool(self, node: str) -> None:
        """By a list of one: the operator may list nodes, not get them. Labels may come after the node's first pod."""
        name = None
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                bodies = await self._lister.items(NODE, None, fields=f"metadata.name={node}")
            name = next((pool_of(body["metadata"].get("labels") or {}) for body in bodies), None)
        except (ApiError, TimeoutError) as error:
            log.warning("pool_unknown", extra={"node": node, "error": str(error) or type(error).__name__})
        self._pools[node] = _NodePool(name, math.inf if name is not None else time.monotonic() + _FAILED_S)

    async def _refused(self, namespace: str, observed: Observed, now: datetime) -> str | None:
        """Why pods of groups are not made. Nothing but Events of their StatefulSets tells.

        What was said before all were there is of a pod that came in the end, or that nobody wants any more.
        """
        sets, live = groups.lacking(observed), observed.deployment
        if live is None or not sets:
            if live is not None and observed.grouped:
                self._whole[f"{namespace} {live.name}"] = now
            return None
        whole = self._whole.get(f"{namespace} {live.name}")
        for name, created in [*sets.items()][:_PODS_ASKED]:
            chosen = f"involvedObject.kind=StatefulSet,involvedObject.name={name}"
            known = [time for time in (created, whole and whole - _LAG) if time is not None]
            words = refused(await self._said(namespace, chosen), max(known, default=None))
            if words is not None:
                return words
        return None

    async def _events(self, namespace: str, pod: Pod, now: datetime) -> list[Body]:
        """Events about a pod, as of a moment ago; none when they cannot be read."""
        return await self._said(namespace, f"involvedObject.uid={pod.uid}", _age_s(pod, now))

    async def _said(self, namespace: str, chosen: str, age_s: float = 0.0) -> list[Body]:
        """`age_s`: of what they are about, if that is longer than they have been asked for."""
        known, now_s = self._words.get(f"{namespace} {chosen}"), time.monotonic()
        if known is not None and now_s < known.until_s:
            return known.events
        since_s = now_s if known is None or now_s > known.until_s + _WORDS_FRESH_CAP_S else known.since_s
        age_s = max(age_s, now_s - since_s)
        good_s = min(max(_WORDS_FRESH_S, _WORDS_FRESH_PER_AGE * age_s), _WORDS_FRESH_CAP_S)
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                events = await self._lister.items(POD_EVENT, namespace, fields=chosen)
        except (ApiError, TimeoutError) as error:
            log.warning("events_unread", extra={"about": chosen, "error": str(error) or type(error).__name__})
            events, good_s = [], _FAILED_S
        self._words[f"{namespace} {chosen}"] = _Words(events, time.monotonic() + good_s, since_s)
        return events

    async def room(self, resource: str) -> Room | None:
        """How much of an extended resource is free, as of a moment ago; None when that cannot be told."""
        if not self._everywhere:
            return None
        async with self._looking:
            known = self._looks.get(resource)
            if known is None or time.monotonic() >= known.until_s:
                known = await self._look(resource)
                now_s = time.monotonic()  # users choose the names: those that nobody asks about any more must go
                self._looks = {name: look for name, look in self._looks.items() if now_s < look.until_s}
                self._looks[resource] = known
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
        """Pods are listed node by node, by the one field that the API server has an index for, and counted as they
        come: those of a thousand nodes at once would hold everything else up.
        """
        allocatable = allocatable_on(await self._lister.items(NODE, None), resource)
        having, taken = iter(allocatable), dict[str, int]()

        async def take() -> None:
            try:
                for name in having:
                    pods = await self._lister.items(POD, None, fields=f"spec.nodeName={name}")
                    taken[name] = taken_by(pods, resource)
            finally:
                deque(having, maxlen=0)  # of what failed once, the rest is of no use

        await asyncio.gather(*(take() for _ in range(_AT_ONCE)))
        return Room.of(resource, allocatable, taken)


def _is(pod: Pod, reason: Reason) -> bool:
    return pod.problem is not None and pod.problem.reason is reason


def _starts(pod: Pod, now: datetime) -> bool:
    ready = pod.start.ready
    return ready is None or now - ready <= _COUNTED


def _kill(pod: Pod, events: list[Body]) -> str | None:
    ended = None if pod.problem is None else pod.problem.since
    return None if ended is None else probe_kill(events, ended)


def _age_s(pod: Pod, now: datetime) -> float:
    """Since a node has it, or else since it was made."""
    since = pod.creating or pod.created
    return 0.0 if since is None else (now - since).total_seconds()
