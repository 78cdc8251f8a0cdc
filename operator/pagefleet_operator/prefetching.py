"""Downloads onto claims: which Job a service's model needs, who shares it, and the writes for it."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pagefleet_api import labels
from pagefleet_api.model_source import CacheMode
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator import render
from pagefleet_operator.cache import ServiceKey, WatchCache
from pagefleet_operator.cluster import Cluster, NotFound
from pagefleet_operator.kinds import JOB
from pagefleet_operator.observed import Body, ChildKey
from pagefleet_operator.plan.prefetch import Prefetch, Stage, plan_prefetch, superfluous

log = logging.getLogger(__name__)

_NO_IMAGE_VOLUMES = (
    "model.uri: oci:// needs image volumes, which this cluster does not have (Kubernetes 1.33 or later with the "
    "feature gate ImageVolume, containerd 2.1 or later); use hf://, s3:// or pvc:// there"
)


@dataclass(frozen=True, slots=True)
class Held:
    """What a service's pods are made from for now.

    service: as it is, or with the pods of its last roll-out while the new model is on its way.
    nothing_yet: no pod is wanted, as there is no model to serve.
    prefetch: how far the download is; None where nothing is cached.
    refused: what the cluster lacks for the model.
    remove: Jobs of earlier models that no service needs.
    """

    service: InferenceService
    nothing_yet: bool = False
    prefetch: Prefetch | None = None
    refused: str | None = None
    remove: tuple[Body, ...] = ()

    def pods(self, number: int) -> int:
        """How many of so many pods there may be."""
        return 0 if self.nothing_yet else number


class Prefetching:
    """Plans from the watch cache; writes Jobs."""

    def __init__(self, cluster: Cluster, cache: WatchCache, image: str) -> None:
        self._cluster, self._cache, self._image = cluster, cache, image

    def plan(self, service: InferenceService, deployment: Body | None) -> Held:
        """What the service's pods wait for, if they wait. `deployment` is the live one."""
        jobs = self._cache.jobs(service.namespace)
        if not jobs and not _cached(service):
            return _mounted(service, deployment)
        others = self._sharing(service)
        seen = {body["metadata"]["uid"] for body in self._cache.services_of(service.namespace)}
        remove = superfluous(service.uid, {render.job_name(user) for user in others}, jobs, seen)
        if not _cached(service):
            return replace(_mounted(service, deployment), remove=remove)
        users = [user for user in others if render.job_name(user) == render.job_name(service)]
        wanted = render.fetch_job(service, users, self._image, ())
        pods = self._cache.fetch_pods(service.namespace, render.job_name(service))
        prefetch = plan_prefetch(wanted, {render.job_digest(user) for user in users}, jobs, pods, seen)
        if prefetch.create is not None:  # only now, as every service of the namespace is read for it
            prefetch = replace(prefetch, create=render.fetch_job(service, users, self._image, self._in_use(service)))
        return _held(service, prefetch, deployment, remove)

    async def carry_out(self, held: Held) -> None:
        """Write what the plan asks for. Raises ApiError as `Cluster` does."""
        prefetch, fields = held.prefetch, {"service": f"{held.service.namespace}/{held.service.name}"}
        gone = (*held.remove, *(prefetch.remove if prefetch else ()))
        for job in gone:
            with contextlib.suppress(NotFound):
                await self._cluster.delete(JOB, job)
            self._cache.drop(JOB.name, job["metadata"]["uid"])
            log.info("fetch_job_removed", extra={**fields, "job": job["metadata"]["name"]})
        if prefetch is not None and prefetch.create is not None:
            written = await self._cluster.create(JOB, prefetch.create)
            self._cache.put(JOB.name, written)
            log.info("fetch_job_made", extra={**fields, "job": written["metadata"]["name"]})
        if prefetch is not None and prefetch.own is not None:
            own = prefetch.own
            written = await self._cluster.give_owners(JOB, own.live, own.owners)
            self._cache.put(JOB.name, written)

    def _sharing(self, service: InferenceService) -> list[InferenceService]:
        """Every service of the namespace that caches its model on a claim, this one among them."""
        found = {user.name: user for body in self._bodies(service.namespace) if (user := _parsed(body)) is not None}
        if _cached(service):
            found[service.name] = service
        return list(found.values())

    def _bodies(self, namespace: str) -> Iterator[Body]:
        for body in self._cache.services_of(namespace):
            if body["metadata"].get("deletionTimestamp") is None and _model(body).get("cache"):
                yield body

    def _in_use(self, service: InferenceService) -> set[str]:
        """Folders of the claim that services of the namespace name, or that pods of their last roll-out have."""
        claim, names = service.spec.model.cache.pvc, set()
        for body in self._cache.services_of(service.namespace):
            key = ServiceKey(service.namespace, body["metadata"]["name"])
            deployment = self._cache.children(key).get(ChildKey("Deployment", labels.child_name(key.name)))
            parsed = _parsed(body, cached=False)
            for user in (parsed, None if parsed is None else render.with_earlier_model(parsed, deployment)):
                names |= set() if user is None else render.folders_on(user.spec.model, claim or "")
        return names


def _held(service: InferenceService, prefetch: Prefetch, deployment: Body | None, remove: tuple[Body, ...]) -> Held:
    """A model that is on its way holds its roll-out back, and where nothing serves yet every pod."""
    held = Held(service, prefetch=prefetch, remove=remove)
    if prefetch.stage is Stage.CACHED:
        return held
    if _has_no_pods(deployment):
        return replace(held, nothing_yet=True)
    return replace(held, service=render.with_earlier_model(service, deployment) or service)


def withheld(held: Held, service: InferenceService, deployment: Body | None) -> Held:
    """The same where no pod may be made of the spec: pods of the last roll-out go on, and nothing is downloaded."""
    return replace(held, service=render.last_rolled_out(service, deployment) or service, prefetch=None)


def _mounted(service: InferenceService, deployment: Body | None) -> Held:
    """A model that pods mount. A server that knows no image volumes drops the volume without a word.

    So the first pods are wanted only when the Deployment has kept it.
    """
    if service.spec.model.location.scheme != "oci" or (deployment and render.has_image_volume(deployment)):
        return Held(service)
    tried = render.is_rendered_for(service, deployment)
    refused = _NO_IMAGE_VOLUMES if tried else None
    return Held(service, nothing_yet=_has_no_pods(deployment), refused=refused)


def _has_no_pods(deployment: Body | None) -> bool:
    return deployment is None or not (deployment.get("spec") or {}).get("replicas")


def _cached(service: InferenceService) -> bool:
    return service.spec.model.cache.mode is CacheMode.PVC


def _model(body: Body) -> dict[str, Any]:
    return (body.get("spec") or {}).get("model") or {}


def _parsed(body: Body, *, cached: bool = True) -> InferenceService | None:
    """A service that can be read, and that caches its model if `cached`."""
    try:
        service = InferenceService.parse(body)
    except InvalidService:
        return None
    return service if _cached(service) or not cached else None
