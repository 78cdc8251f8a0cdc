"""Downloads onto claims: which Job a service's model needs, who shares it, and the writes for it."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
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
from pagefleet_operator.plan.prefetch import Prefetch, Stage, owner_uids, plan_prefetch, superfluous

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
        elif (dangerous := self._dangerous(service, prefetch, jobs, seen)) is not None:
            words = f"Job {dangerous['metadata']['name']} is made anew, as other models came into use"
            prefetch = Prefetch(Stage.FETCHING, words, remove=(dangerous,))
        return _held(service, prefetch, deployment, remove)

    def _dangerous(
        self, service: InferenceService, prefetch: Prefetch, jobs: Sequence[Body], seen: set[str]
    ) -> Body | None:
        """The service's Job where it would remove a model that came into use since it was made.

        It tries again for days, and always with the names of its beginning. One that another operator's service owns
        too is left as it is: neither of the two knows all names.
        """
        name = render.job_name(service)
        live = next((job for job in jobs if job["metadata"]["name"] == name), None)
        if live is None or prefetch.stage is Stage.CACHED or prefetch.remove or _is_going(live):
            return None
        if not owner_uids(live) <= seen:
            return None
        stay = render.stays(live)
        return None if stay is None or self._in_use(service) <= stay else live

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
        """Folders of the claim that services of the namespace name, or that their pods have."""
        claim, names = service.spec.model.cache.pvc or "", set()
        for body in self._cache.services_of(service.namespace):
            key = ServiceKey(service.namespace, body["metadata"]["name"])
            parsed = _parsed(body, cached=False)
            names |= set() if parsed is None else render.folders_on(parsed.spec.model, claim)
            names |= {name for template in self._templates(key) for name in render.folders_mounted(template, claim)}
        return names

    def _templates(self, key: ServiceKey) -> list[Mapping[str, Any]]:
        """Of the Deployment, and of every generation that has pods: beside a trial, that is most of them."""
        deployment = self._cache.children(key).get(ChildKey("Deployment", labels.child_name(key.name))) or {}
        having = {pod.template_hash for pod in self._cache.pods(key)}
        older = [each.template for each in self._cache.generations(key) if each.template_hash in having]
        return [(deployment.get("spec") or {}).get("template") or {}, *older]


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


def _is_going(job: Body) -> bool:
    return job["metadata"].get("deletionTimestamp") is not None


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
