"""Carries a plan out, in the order that cuts no answer off, and puts every answer into the cache."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_api import labels
from pagefleet_api.service import InferenceService
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.cluster import ApiError, Cluster, NotFound
from pagefleet_operator.engines.scraper import Scraper
from pagefleet_operator.facts.observed import LEAVING_COST, Body, ChildKey, Observed, Pod
from pagefleet_operator.kinds import CHILDREN, POD, WORKLOADS
from pagefleet_operator.metrics import Metrics, Operator
from pagefleet_operator.news import News
from pagefleet_operator.plan.convergence import Action, Apply, Conflict, Remove, Resize, Wait, obstacle
from pagefleet_operator.plan.replicas import Drain, Release, ReplicaPlan, Undrain

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Steps:
    """What one pass wants done for one service."""

    service: InferenceService
    observed: Observed
    replicas: ReplicaPlan
    children: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Hindrances:
    """What kept a pass from the children."""

    conflicts: tuple[Conflict, ...] = ()
    waits: tuple[Wait, ...] = ()

    @classmethod
    def of(cls, found: Sequence[Action]) -> "Hindrances":
        """Those among these actions."""
        return cls(
            tuple(action for action in found if isinstance(action, Conflict)),
            tuple(action for action in found if isinstance(action, Wait)),
        )


class Executor:
    """Writes to the API server and to engines."""

    def __init__(self, cluster: Cluster, scraper: Scraper, cache: WatchCache, metrics: Metrics) -> None:
        self._cluster, self._scraper, self._cache, self._metrics = cluster, scraper, cache, metrics

    async def execute(self, steps: Steps) -> Hindrances:
        """Do all of it; says what kept it from the children, if anything. Raises ApiError as `Cluster` does.

        Pods first: a pod must be out of the Service and told to drain, and a drained pod must carry its deletion
        cost, before the Deployment's number goes down. One conflict keeps it from all children, as they serve
        only together; a child of a predecessor is waited for while the others are made.
        """
        await self._move_pods(steps)
        children = [await self._looked_up(steps, action) for action in steps.children]
        hindrances = Hindrances.of(children)
        if not hindrances.conflicts:
            for action in children:
                await self._change_child(steps, action)
        plan = steps.replicas
        await asyncio.gather(*(self._tell(order.pod, drain=order.drain) for order in plan.tell))
        return hindrances

    async def post(self, namespace: str, name: str, uid: str, news: News) -> None:
        """Put an Event on a service. One that cannot be written is logged: it changes nothing."""
        key = ServiceKey(namespace, name)
        log.info("event", extra={"service": str(key), "reason": news.reason.value, "message_text": news.message})
        try:
            await self._cluster.post_event(namespace, name, uid, news)
        except ApiError as error:
            log.warning("event_not_posted", extra={"service": str(key), "error": str(error)})

    async def _move_pods(self, steps: Steps) -> None:
        plan, namespace = steps.replicas, steps.service.namespace
        for undrain in plan.undrain:
            await self._undrain(namespace, undrain)
        for drain in plan.drain:
            await self._drain(namespace, drain)
        for release in plan.release:
            await self._release(steps.service, release)
        orders = [self._tell(order.pod, drain=False) for order in plan.undrain]
        orders += [self._tell(order.pod, drain=True) for order in plan.drain if order.deletion_cost > LEAVING_COST]
        await asyncio.gather(*orders)
        for news in plan.events:
            await self.post(namespace, steps.service.name, steps.service.uid, news)

    async def _undrain(self, namespace: str, order: Undrain) -> None:
        notes = {labels.DRAIN_STARTED: None, labels.DELETION_COST: None}
        await self._mark(namespace, order.pod, {labels.SERVING: labels.SERVING_TRUE}, notes)

    async def _drain(self, namespace: str, order: Drain) -> None:
        notes = {labels.DRAIN_STARTED: order.started, labels.DELETION_COST: str(order.deletion_cost)}
        await self._mark(namespace, order.pod, {labels.SERVING: labels.SERVING_FALSE}, notes)

    async def _release(self, service: InferenceService, order: Release) -> None:
        await self._mark(service.namespace, order.pod, {}, {labels.DELETION_COST: str(order.deletion_cost)})
        place = ServiceKey(service.namespace, service.name).series
        self._metrics.observe(Operator.DRAIN, order.took_s, *place)
        self._metrics.add(Operator.DRAIN_ABORTED, *place, amount=order.aborted or 0)
        if order.aborted is None:
            log.warning("drain_ended_unseen", extra={"pod": order.pod.name, "took_s": order.took_s})

    async def _mark(
        self, namespace: str, pod: Pod, pod_labels: Mapping[str, str | None], notes: Mapping[str, str | None]
    ) -> None:
        written = await self._cluster.mark_pod(namespace, pod.name, pod.uid, pod_labels=pod_labels, annotations=notes)
        self._cache.put(POD.name, written)

    async def _tell(self, pod: Pod, *, drain: bool) -> None:
        """An engine that cannot be told is told again by a later pass; its pod is out of the Service already."""
        await (self._scraper.drain(pod) if drain else self._scraper.undrain(pod))

    async def _looked_up(self, steps: Steps, action: Action) -> Action:
        """A child that seems to be new is read: the cache has no objects of others, which lack our label."""
        if not isinstance(action, Apply):
            return action
        child = ChildKey.of(action.manifest)
        if child in steps.observed.children:
            return action
        live = await self._cluster.read(CHILDREN[child.kind], steps.service.namespace, child.name)
        return (None if live is None else obstacle(action.manifest, live)) or action

    async def _change_child(self, steps: Steps, action: Action) -> None:
        if isinstance(action, Apply):
            written = await self._cluster.apply(action.manifest)
            self._cache.put(written["kind"], written)
            _log_applied(steps, action, written)
        elif isinstance(action, Remove):
            await self._remove(steps, action)
        elif isinstance(action, Resize):
            await self._resize(steps, action)

    async def _resize(self, steps: Steps, action: Resize) -> None:
        kind = WORKLOADS[action.child.kind]
        written = await self._cluster.resize(kind, action.live, action.replicas)
        self._cache.put(kind.name, written)
        service = f"{steps.service.namespace}/{steps.service.name}"
        log.info("predecessor_resized", extra={"service": service, "kind": kind.name, "replicas": action.replicas})

    async def _remove(self, steps: Steps, action: Remove) -> None:
        """Once: the cache forgets it, as the next pass may come before the news of its end."""
        kind = action.child.kind
        with contextlib.suppress(NotFound):
            await self._cluster.delete(CHILDREN[kind], action.live)
        self._cache.drop(kind, action.live["metadata"]["uid"])
        service = f"{steps.service.namespace}/{steps.service.name}"
        log.info("child_removed", extra={"service": service, "kind": kind})


def _log_applied(steps: Steps, action: Apply, written: Body) -> None:
    fields: dict[str, Any] = {
        "service": f"{steps.service.namespace}/{steps.service.name}",
        "kind": action.manifest["kind"],
    }
    before = steps.observed.deployment
    if written["kind"] in WORKLOADS:
        fields |= {"replicas_before": before and before.replicas, "replicas": written["spec"].get("replicas")}
    log.info("child_applied", extra=fields)
