"""Who looks after what pods need, and the writes for it."""

import contextlib
import logging
from collections.abc import Sequence
from typing import Protocol

from pagefleet_api.service import InferenceService
from pagefleet_operator.apiserver.cache import WatchCache
from pagefleet_operator.apiserver.cluster import Cluster, NotFound
from pagefleet_operator.facts.observed import Body
from pagefleet_operator.supplies import Create, Delete, Own, Supply, Write

log = logging.getLogger(__name__)


class Supplier(Protocol):
    """Looks after one need of pods, from the watch cache."""

    def plan(self, service: InferenceService, live: Body | None, *, held_back: bool) -> Supply:
        """What there is and what to write. `live` is the Deployment; `held_back`: no pod will be made, so nothing new
        is to be brought on."""


class Supplying:
    """Carries supplies' writes out, and puts every answer into the cache."""

    def __init__(self, cluster: Cluster, cache: WatchCache) -> None:
        self._cluster, self._cache = cluster, cache

    async def carry_out(self, service: InferenceService, writes: Sequence[Write]) -> None:
        """Do them in their order. Raises ApiError as `Cluster` does."""
        for write in writes:
            match write:
                case Delete(kind, live):
                    with contextlib.suppress(NotFound):
                        await self._cluster.delete(kind, live)
                    self._cache.drop(kind.name, live["metadata"]["uid"])
                    name = live["metadata"]["name"]
                case Create(kind, manifest):
                    written = await self._cluster.create(kind, manifest)
                    self._cache.put(kind.name, written)
                    name = written["metadata"]["name"]
                case Own(kind, live, owners):
                    written = await self._cluster.give_owners(kind, live, owners)
                    self._cache.put(kind.name, written)
                    name = live["metadata"]["name"]
            fields = {"service": f"{service.namespace}/{service.name}", "kind": write.kind.name, "object": name}
            log.info("supply_written", extra={**fields, "write": type(write).__name__})
