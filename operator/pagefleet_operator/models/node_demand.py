"""Which services want their model on nodes, and which claims their pods mount: from the watch cache."""

from collections.abc import Collection, Iterable

from pagefleet_api.model_source import CacheMode
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator import render
from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.facts.mounts import claims_of
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.plan.node_cache import ClaimKey


class NodeDemand:
    """What all services together want of nodes."""

    def __init__(self, cache: WatchCache) -> None:
        self._cache = cache
        self._users: dict[str, InferenceService] = {}
        self._held_back: set[ServiceKey] = set()

    def hold_back(self, key: ServiceKey, held_back: bool) -> None:
        """No pod will be made of this service, so it wants nothing; or, with False, it does again."""
        (self._held_back.add if held_back else self._held_back.discard)(key)

    def services(self) -> list[InferenceService]:
        """Those that want their model on nodes; one that cannot be read any more goes on as it was."""
        living = self._living()
        self._held_back.intersection_update(living)
        wanting = (self._parsed(body) for key, body in living.items() if key not in self._held_back)
        self._users = {service.uid: service for service in wanting if service is not None}
        return list(self._users.values())

    def mounted(self, namespaces: Collection[str]) -> frozenset[ClaimKey]:
        """Claims of these namespaces that engine pods have, or will have."""
        return frozenset(ClaimKey(place, name) for place in namespaces for name in self._claims(place))

    def _claims(self, namespace: str) -> set[str]:
        latest = (claims_of(render.template_of(body).get("spec") or {}) for body in self._cache.workloads(namespace))
        living = (pod.claims for pod in self._cache.engine_pods(namespace))
        return {name for claims in (*latest, *living) for name in claims}

    def _living(self) -> dict[ServiceKey, Body]:
        found = {key: self._cache.service(key) for key in self._cache.services()}
        return {key: body for key, body in found.items() if body and not body["metadata"].get("deletionTimestamp")}

    def _parsed(self, body: Body) -> InferenceService | None:
        meta = body["metadata"]
        before = self._users.get(meta["uid"])
        if before is not None and before.generation == meta.get("generation"):
            return before
        if before is None and ((body["spec"].get("model") or {}).get("cache") or {}).get("mode") != CacheMode.NODE:
            return None
        try:
            service = InferenceService.parse(body)
        except InvalidService:
            return before
        return service if on_nodes(service) else None


def on_nodes(service: InferenceService) -> bool:
    """Whether a service wants its model on nodes."""
    return service.spec.model.cache.mode is CacheMode.NODE


def versions(services: Iterable[InferenceService]) -> dict[str, tuple[int, str]]:
    """Generation and name by uid: when any of these changes, there is something to do."""
    return {user.uid: (user.generation, user.name) for user in services}
