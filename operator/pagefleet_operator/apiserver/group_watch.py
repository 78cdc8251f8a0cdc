"""Keeps LeaderWorkerSets in the cache, whose CRD a cluster may lack, get later, or lose.

They are listed every few seconds and not watched: kopf watches what was there when it began. What a pass decides by
changes with their pods, which are watched; a list only brings back what others changed about the sets themselves. So
only their metadata is listed, and a set is read when its version is new; where nobody asks for groups the next list
waits for a minute, and while another replica leads for its end.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Protocol

from pagefleet_operator.apiserver.cache import Keys, ServiceKey, WatchCache
from pagefleet_operator.apiserver.cluster import ApiError, Body, NotFound, Refused
from pagefleet_operator.kinds import GROUP_SET, Kind

log = logging.getLogger(__name__)

_LACKING_FACTOR = 3
"""A CRD that is not there is looked for this much more rarely,"""
_CALM_FACTOR = 12
"""and what nobody asks for so much."""
_NO_CRD = (
    f"this cluster has no CRD {GROUP_SET.plural}.{GROUP_SET.api_version.partition('/')[0]}: "
    "install LWS (https://lws.sigs.k8s.io)"
)
_NOT_ALLOWED = f"the operator may not list {GROUP_SET.plural}"


class Lister(Protocol):
    """Lists and reads objects; `Cluster` is one."""

    async def listed(self, kind: Kind, namespace: str | None) -> list[Body]:
        """Our objects of a kind without all but their metadata. Raises ApiError, NotFound without its CRD."""

    async def read(self, kind: Kind, namespace: str | None, name: str) -> Body | None:
        """One object, None when there is none. Raises ApiError."""


class GroupWatch:
    """Lists each namespace (None: the whole cluster) on its own, every `interval_s` where groups are asked for."""

    def __init__(
        self,
        namespaces: tuple[str | None, ...],
        cache: WatchCache,
        lister: Lister,
        queue: Keys,
        leads: Callable[[], bool],
        *,
        interval_s: float,
    ) -> None:
        self._namespaces, self._cache, self._lister, self._queue = namespaces, cache, lister, queue
        self._leads, self._interval_s = leads, interval_s
        self._listed: set[str | None] = set()
        self._again = asyncio.Event()

    def knows(self, key: ServiceKey) -> bool:
        """A pass over that service sees all that it has. One in groups waits for that, and nobody else does."""
        return bool(self._listed & {key.namespace, None}) or not self._cache.in_groups(key)

    def unlisted(self) -> list[str]:
        """Namespaces that are asked for and not known; the whole cluster is `*`."""
        missing = set(self._namespaces) - self._listed if self._leads() else set()
        return sorted(namespace or "*" for namespace in missing)

    def begin(self) -> None:
        """This replica leads from now on: what it knows is from before the latest writes of another one."""
        self._listed = set()
        self._again.set()
        self._again = asyncio.Event()

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for namespace in self._namespaces:
                group.create_task(self._follow(namespace))

    async def _follow(self, namespace: str | None) -> None:
        while True:
            again, listed = self._again, self._listed
            if self._leads() and await self._look(namespace) and namespace not in listed:
                listed.add(namespace)  # of this beginning: what was asked before the next one is no answer to it
                for key in self._asking(namespace):
                    self._queue.add(key)
            await self._pause(namespace, again)

    async def _pause(self, namespace: str | None, again: asyncio.Event) -> None:
        """Until the next list. Who asks for groups may come, so that is asked again meanwhile."""
        for passed in itertools.count(1):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(again.wait(), self._interval_s)
            if again.is_set() or passed >= self._patience(namespace):
                return

    def _patience(self, namespace: str | None) -> int:
        """In intervals."""
        if namespace not in self._listed:
            return 1
        if not (self._cache.uids(GROUP_SET.name, namespace) or self._asking(namespace)):
            return _CALM_FACTOR
        return _LACKING_FACTOR if self._cache.lack(GROUP_SET.name, namespace) else 1

    def _asking(self, namespace: str | None) -> list[ServiceKey]:
        """The services that are in groups, or are to be."""
        return [key for key in self._cache.services(namespace) if self._cache.in_groups(key)]

    async def _look(self, namespace: str | None) -> bool:
        """Whether the server has said what there is."""
        before = self._cache.uids(GROUP_SET.name, namespace)  # what comes while it answers must not look gone
        try:
            found = await self._lister.listed(GROUP_SET, namespace)
            await self._read(found)
        except NotFound:
            self._note(namespace, _NO_CRD)
            self._forget(before, for_good=False)
        except Refused as error:  # which tells nothing of what there is
            self._note(namespace, f"{_NOT_ALLOWED} ({error}): let it, as the chart does")
        except ApiError as error:
            log.warning("listing_failed", extra={"kind": GROUP_SET.name, "error": str(error)})
            return False
        else:
            self._note(namespace, None)
            self._forget(before - {body["metadata"]["uid"] for body in found}, for_good=True)
        return True

    async def _read(self, found: list[Body]) -> None:
        """Those of which the cache does not have that version."""
        for meta in (body["metadata"] for body in found):
            if self._cache.has(GROUP_SET.name, meta):
                continue
            body = await self._lister.read(GROUP_SET, meta["namespace"], meta["name"])
            if body is not None:
                self._put(body)

    def _put(self, body: Body) -> None:
        uid = body["metadata"]["uid"]
        before = self._cache.version(GROUP_SET.name, uid)
        self._cache.put(GROUP_SET.name, body)
        if self._cache.version(GROUP_SET.name, uid) != before:
            for owner in self._cache.owners(GROUP_SET.name, uid):
                self._queue.nudge(owner)

    def _forget(self, uids: set[str], *, for_good: bool) -> None:
        """for_good: none of them can come back. A server that does not serve the kind may still have them."""
        for uid in uids:
            owners = self._cache.owners(GROUP_SET.name, uid)
            self._cache.drop(GROUP_SET.name, uid, for_good=for_good)
            for owner in owners:
                self._queue.nudge(owner)

    def _note(self, namespace: str | None, lack: str | None) -> None:
        before = self._cache.lack(GROUP_SET.name, namespace)
        self._cache.note_lack(GROUP_SET.name, namespace, lack)
        if (lack is None) == (before is None):
            return
        event = "group_sets_served" if lack is None else "group_sets_lacking"
        log.info(event, extra={"namespace": namespace or "*", "words": lack})
        if namespace in self._listed:
            for key in self._asking(namespace):
                self._queue.add(key)
