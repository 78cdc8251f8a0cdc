"""Keeps LeaderWorkerSets in the cache, whose CRD a cluster may lack, get later, or lose.

They are listed every few seconds and not watched: kopf watches what was there when it began. What a pass decides by
changes with their pods, which are watched; a list only brings back what others changed about the sets themselves.
"""

import asyncio
import logging
from typing import Protocol

from pagefleet_operator.cache import Keys, WatchCache
from pagefleet_operator.cluster import ApiError, Body, NotFound, Refused
from pagefleet_operator.kinds import GROUP_SET, Kind

log = logging.getLogger(__name__)

_LACKING_FACTOR = 3
"""A CRD that is not there is looked for this much more rarely."""
_NO_CRD = (
    f"this cluster has no CRD {GROUP_SET.plural}.{GROUP_SET.api_version.partition('/')[0]}: "
    "install LWS (https://lws.sigs.k8s.io)"
)
_NOT_ALLOWED = f"the operator may not list {GROUP_SET.plural}"


class Lister(Protocol):
    """Lists objects; `Cluster` is one."""

    async def ours(self, kind: Kind, namespace: str | None) -> list[Body]:
        """Our objects of a kind, as the server's storage has them now. Raises ApiError, NotFound without its CRD."""


class GroupWatch:
    """Lists each namespace (None: the whole cluster) every `interval_s`."""

    def __init__(
        self, namespaces: tuple[str | None, ...], cache: WatchCache, lister: Lister, queue: Keys, *, interval_s: float
    ) -> None:
        self._namespaces, self._cache, self._lister, self._queue = namespaces, cache, lister, queue
        self._interval_s = interval_s
        self.synced = asyncio.Event()
        """Every namespace has been listed, or has said that there is nothing to list."""

    async def run(self) -> None:
        """For ever."""
        heard: set[str | None] = set()
        while True:
            for namespace in self._namespaces:
                if await self._look(namespace):
                    heard.add(namespace)
            if len(heard) == len(self._namespaces):
                self.synced.set()
            factor = _LACKING_FACTOR if self.synced.is_set() and self._cache.lack(GROUP_SET.name) else 1
            await asyncio.sleep(self._interval_s * factor)

    async def _look(self, namespace: str | None) -> bool:
        """Whether the server has said what there is."""
        lack = None
        before = self._cache.uids(GROUP_SET.name, namespace)  # what comes while it answers must not look gone
        try:
            found = await self._lister.ours(GROUP_SET, namespace)
        except NotFound:
            found, lack = [], _NO_CRD
        except Refused as error:
            found, lack = [], f"{_NOT_ALLOWED} ({error}): let it, as the chart does"
        except ApiError as error:
            log.warning("listing_failed", extra={"kind": GROUP_SET.name, "error": str(error)})
            return False
        self._note(lack)
        for body in found:
            self._put(body)
        for uid in before - {body["metadata"]["uid"] for body in found}:
            owners = self._cache.owners(GROUP_SET.name, uid)
            self._cache.drop(GROUP_SET.name, uid)
            for owner in owners:
                self._queue.nudge(owner)
        return True

    def _put(self, body: Body) -> None:
        uid = body["metadata"]["uid"]
        before = self._cache.version(GROUP_SET.name, uid)
        self._cache.put(GROUP_SET.name, body)
        if self._cache.version(GROUP_SET.name, uid) != before:
            for owner in self._cache.owners(GROUP_SET.name, uid):
                self._queue.nudge(owner)

    def _note(self, lack: str | None) -> None:
        before = self._cache.lack(GROUP_SET.name)
        self._cache.note_lack(GROUP_SET.name, lack)
        if (lack is None) == (before is None):
            return
        log.info("group_sets_served" if lack is None else "group_sets_lacking", extra={"words": lack})
        if self.synced.is_set():
            for key in self._cache.services():
                self._queue.add(key)
