"""Downloads onto claims: which Job a service's model needs, and who shares it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pagefleet_api.model_source import CacheMode, ModelCache
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator import render
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.facts.mounts import Claims, claims_of
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.kinds import JOB
from pagefleet_operator.models.downloads import Downloads
from pagefleet_operator.plan.prefetch import Prefetch, Stage, owner_uids, plan_prefetch, superfluous, together
from pagefleet_operator.supplies import Create, Delete, Lack, Own, Supply, Write, of_prefetch, untried

InUse = Callable[[], frozenset[str]]
"""Folders of the claim that are read. Every service of the namespace is read for it: once for all parts of one."""


class Prefetching:
    """Plans from the watch cache: a `Supplier` of models on claims, and of those in images."""

    def __init__(self, cache: WatchCache, image: str, downloads: Downloads) -> None:
        self._cache, self._image, self._downloads = cache, image, downloads

    def plan(self, service: InferenceService, live: Body | None, *, held_back: bool) -> Supply:
        """What the service's pods wait for, if they wait."""
        jobs = self._cache.jobs(service.namespace)
        parts = _cached_parts(service)
        if not jobs and not parts:
            return Supply(_undecided(service, live))
        users = self._users(service)
        seen = {body["metadata"]["uid"] for body in self._cache.services_of(service.namespace)}
        cleared = tuple(Delete(JOB, job) for job in superfluous(service.uid, users.keys(), jobs, seen))
        if held_back or not parts:
            return Supply(_undecided(service, live), writes=cleared)
        called = service.spec.model.called
        in_use = cache(lambda: frozenset(self._in_use(service)))
        found = {called(part.spec.model): self._prefetch(part, users, jobs, seen, in_use) for part in parts}
        prefetch = together(found)
        supply = of_prefetch(prefetch, (*cleared, *(write for each in found.values() for write in _writes(each))))
        return supply if supply.lack is not None else replace(supply, lack=_undecided(service, live))

    def _prefetch(
        self,
        service: InferenceService,
        by_job: Mapping[str, Sequence[InferenceService]],
        jobs: Sequence[Body],
        seen: set[str],
        in_use: InUse,
    ) -> Prefetch:
        """Of one part of a service."""
        users = by_job[render.job_name(service)]
        wanted = render.fetch_job(service, users, self._image, ())
        pods = self._cache.fetch_pods(service.namespace, render.job_name(service))
        told = self._downloads.about(ServiceKey(service.namespace, service.name), pods)
        prefetch = plan_prefetch(wanted, {render.job_digest(user) for user in users}, jobs, pods, seen, told)
        if prefetch.create is not None:
            return replace(prefetch, create=render.fetch_job(service, users, self._image, in_use()))
        if (outdated := self._outdated(service, prefetch, jobs, seen, in_use)) is not None:
            return outdated
        return prefetch

    def _outdated(
        self, service: InferenceService, prefetch: Prefetch, jobs: Sequence[Body], seen: set[str], in_use: InUse
    ) -> Prefetch | None:
        """The service's Job made anew, where it would remove a model that came into use since it was made, or finds no
        room for one that went out of use since.

        It tries again for days, and always with the names of its beginning. One that another operator's service owns
        too is left as it is: neither of the two knows all names.
        """
        name = render.job_name(service)
        live = next((job for job in jobs if job["metadata"]["name"] == name), None)
        if live is None or prefetch.stage is Stage.CACHED or prefetch.remove or _is_going(live):
            return None
        stay = render.stays(live)
        if stay is None or not owner_uids(live) <= seen:
            return None
        used = in_use() | {service.spec.model.key}
        if not used <= stay:
            return Prefetch(Stage.FETCHING, f"Job {name} is made anew, as other models came into use", remove=(live,))
        if prefetch.stage is Stage.FAILING and used != stay:
            return Prefetch(Stage.FETCHING, f"Job {name} is made anew, as models went out of use", remove=(live,))
        return None

    def _users(self, service: InferenceService) -> dict[str, list[InferenceService]]:
        """By the names of their Jobs all services of the namespace that cache models on a claim, this one among them:
        each once for its model and for each adapter.
        """
        found = {user.name: user for body in self._bodies(service.namespace) if (user := _parsed(body)) is not None}
        found[service.name] = service
        by_job: dict[str, list[InferenceService]] = {}
        for part in (part for user in found.values() for part in _cached_parts(user)):
            by_job.setdefault(render.job_name(part), []).append(part)
        return by_job

    def _bodies(self, namespace: str) -> Iterator[Body]:
        for body in self._cache.services_of(namespace):
            if body["metadata"].get("deletionTimestamp") is None and _model(body).get("cache"):
                yield body

    def _in_use(self, service: InferenceService) -> set[str]:
        """Folders of the claim that services of the namespace name, or that pods have; of another operator's services
        those of their Jobs and pods, which are all that is seen of them.
        """
        claim, names = service.spec.model.cache.pvc or "", set[str]()
        bodies = self._cache.services_of(service.namespace)
        for parsed in map(_parsed, bodies):
            names |= set() if parsed is None else render.folders_on(parsed.spec.model, claim)
        names |= {name for claims in self._mounted(service.namespace) for name in claims.get(claim, ())}
        seen = {body["metadata"]["uid"] for body in bodies}
        foreign = [
            job for job in self._cache.jobs(service.namespace) if not (owner_uids(job) <= seen or _is_going(job))
        ]
        return names | {name for job in foreign if (name := render.fetched_onto(job, claim)) is not None}

    def _mounted(self, namespace: str) -> list[Claims]:
        """By every workload's pods to come, and by those that live: in a roll-out these may have another model."""
        latest = [claims_of(render.template_of(body).get("spec") or {}) for body in self._cache.workloads(namespace)]
        return [*latest, *(pod.claims for pod in self._cache.engine_pods(namespace))]


def _writes(prefetch: Prefetch) -> Iterator[Write]:
    yield from (Delete(JOB, job) for job in prefetch.remove)
    if prefetch.create is not None:
        yield Create(JOB, dict(prefetch.create))
    if prefetch.own is not None:
        yield Own(JOB, prefetch.own.live, prefetch.own.owners)


def _undecided(service: InferenceService, live: Body | None) -> Lack | None:
    """Of a model in an image: the first pods are wanted when the API server has seen the volume that they are to mount.

    A server that knows no image volumes drops it without a word. Then pods of another template are made, see
    `render.mounts_model`.
    """
    return untried() if service.spec.model.in_image and not render.made_of(service, live) else None


def _is_going(job: Body) -> bool:
    return job["metadata"].get("deletionTimestamp") is not None


def _cached_parts(service: InferenceService) -> list[InferenceService]:
    """Of the service's parts those that a Job brings onto a claim."""
    return [part for part in service.parts if _by_job(part.spec.model.cache)]


def _by_job(cache: ModelCache) -> bool:
    return cache.mode is CacheMode.PVC and cache.prefetch


def _model(body: Body) -> dict[str, Any]:
    return (body.get("spec") or {}).get("model") or {}


def _parsed(body: Body) -> InferenceService | None:
    """A service that can be read."""
    try:
        return InferenceService.parse(body)
    except InvalidService:
        return None
