"""Which services want their model on nodes, and which claims their pods mount: from the watch cache."""

import json
import logging
from collections.abc import Collection, Iterable
from typing import NamedTuple

from pagefleet_api.model_source import CacheMode
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator import render
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.facts.mounts import claims_of
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.plan.node_placing import placing
from pagefleet_operator.plan.nodes_seen import ClaimKey

log = logging.getLogger(__name__)


class Version(NamedTuple):
    """Of a service: when any of this changes, there is something to do."""

    generation: int
    name: str
    decided: bool


class Use(NamedTuple):
    """One model of one service on the nodes of its pods: what holds of it holds of no other one, of no other service of
    that name, and of no other nodes.
    """

    key: ServiceKey
    uid: str
    model: str
    placing: str

    @classmethod
    def of(cls, service: InferenceService) -> "Use":
        """That of the service's present spec."""
        places = json.dumps(placing(service), sort_keys=True)
        key = ServiceKey(service.namespace, service.name)
        return cls(key, service.uid, render.node_model_name(service), places)


class NodeDemand:
    """What all services together want of nodes."""

    def __init__(self, cache: WatchCache) -> None:
        self._cache = cache
        self._users: dict[str, InferenceService] = {}
        self._invalid: dict[str, int | None] = {}
        """Generations that cannot be read: a look every few seconds reads each once."""
        self._held_back: dict[ServiceKey, bool] = {}

    def hold_back(self, key: ServiceKey, held_back: bool) -> None:
        """No pod will be made of this service, so it wants nothing; or, with False, it does again."""
        self._held_back[key] = held_back

    def decided(self, service: InferenceService) -> bool:
        """Whether a pass has said yet that pods of this service are made."""
        return self._held_back.get(ServiceKey(service.namespace, service.name)) is False

    def versions(self, services: Iterable[InferenceService]) -> dict[str, Version]:
        """Of services, by uid."""
        return {user.uid: Version(user.generation, user.name, self.decided(user)) for user in services}

    def services(self) -> list[InferenceService]:
        """Those that want their model on nodes, or may; one that cannot be read any more goes on as it was."""
        living = self._living()
        self._held_back = {key: held_back for key, held_back in self._held_back.items() if key in living}
        wanting = (self._parsed(body) for key, body in living.items() if not self._held_back.get(key, False))
        uids = {body["metadata"]["uid"] for body in living.values()}
        self._invalid = {uid: generation for uid, generation in self._invalid.items() if uid in uids}
        self._users = {service.uid: service for service in wanting if service is not None}
        return list(self._users.values())

    def mounted(self, namespaces: Collection[str]) -> frozenset[ClaimKey]:
        """Claims of these namespaces that engine pods have, or will have."""
        return frozenset(ClaimKey(place, name) for place in namespaces for name in self._claims(place))

    def readers(self, namespaces: Collection[str]) -> dict[ClaimKey, frozenset[str]]:
        """Nodes of these namespaces' engine pods, by the claims that they have."""
        found: dict[ClaimKey, set[str]] = {}
        for place in namespaces:
            for pod in self._cache.engine_pods(place):
                for name in pod.claims if pod.node is not None else ():
                    found.setdefault(ClaimKey(place, name), set()).add(str(pod.node))
        return {key: frozenset(nodes) for key, nodes in found.items()}

    def _claims(self, namespace: str) -> set[str]:
        latest = (claims_of(render.template_of(body).get("spec") or {}) for body in self._cache.workloads(namespace))
        living = (pod.claims for pod in self._cache.engine_pods(namespace))
        return {name for claims in (*latest, *living) for name in claims}

    def _living(self) -> dict[ServiceKey, Body]:
        found = {key: self._cache.service(key) for key in self._cache.services()}
        return {key: body for key, body in found.items() if body and not body["metadata"].get("deletionTimestamp")}

    def _parsed(self, body: Body) -> InferenceService | None:
        meta = body["metadata"]
        uid, generation = meta["uid"], meta.get("generation")
        before = self._users.get(uid)
        if (before is not None and before.generation == generation) or self._invalid.get(uid, -1) == generation:
            return before
        if before is None and ((body["spec"].get("model") or {}).get("cache") or {}).get("mode") != CacheMode.NODE:
            return None
        try:
            service = InferenceService.parse(body)
        except InvalidService:
            self._invalid[uid] = generation
            return before
        except Exception:  # of one service; its own passes tell of it
            log.exception("node_demand_broken", extra={"service": f"{meta['namespace']}/{meta['name']}"})
            return before
        return service if on_nodes(service) else None


def on_nodes(service: InferenceService) -> bool:
    """Whether a service wants its model on nodes."""
    return service.spec.model.cache.mode is CacheMode.NODE


def parts_on_nodes(service: InferenceService) -> list[InferenceService]:
    """Of the service's parts those that it wants on nodes."""
    return [part for part in service.parts if on_nodes(part)]
