"""Keeps operators that watch the same services off each other's."""

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from pagefleet_operator.apiserver.cache import ServiceKey, WatchCache
from pagefleet_operator.apiserver.cluster import ApiError
from pagefleet_operator.kinds import WORKLOADS
from pagefleet_operator.ownership import Owner, Stance, stance
from pagefleet_operator.settings import Settings

log = logging.getLogger(__name__)


class LeaseReader(Protocol):
    """Reads Leases; `Cluster` is one."""

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The Lease, or None when there is none. Raises ApiError."""


class _Seen:
    """Another operator's Lease, and since when it has not changed (own monotonic clock)."""

    def __init__(self, lease: dict[str, Any], now_s: float) -> None:
        spec = lease.get("spec") or {}
        self.version = lease["metadata"]["resourceVersion"]
        self.held = bool(spec.get("holderIdentity"))
        self.duration_s = float(spec.get("leaseDurationSeconds") or 0)
        self.since_s = now_s


class Claims:
    """Says of each service whether this operator may act. `look_again(key, delay_s)` asks for a further look."""

    def __init__(
        self,
        settings: Settings,
        cache: WatchCache,
        leases: LeaseReader,
        look_again: Callable[[ServiceKey, float], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._ours, self._timings = settings.owner, settings.timings
        self._cache, self._leases, self._look_again = cache, leases, look_again
        self._moved_s: dict[ServiceKey, float] = {}
        self._left: dict[ServiceKey, Owner] = {}
        self._seen: dict[Owner, _Seen] = {}

    async def may_act(self, key: ServiceKey) -> bool:
        """Whether it may now. Without the right to read the other one's Lease, that one counts as alive."""
        theirs = Owner.of(next((body for child, body in self._children(key) if child in WORKLOADS), None))
        kind = stance(self._ours, theirs)
        if theirs is None or kind is Stance.ACT or await self._given_up(key, theirs, kind):
            self.forget(key)
            return True
        return False

    def forget(self, key: ServiceKey) -> None:
        """The service is gone, or this operator's."""
        self._moved_s.pop(key, None)
        self._left.pop(key, None)
        self._prune()

    def _prune(self) -> None:
        """Forget Leases that no service waits for: whoever may write Deployments chooses their names."""
        if self._seen:
            waited_for = set(self._left.values())
            self._seen = {owner: seen for owner, seen in self._seen.items() if owner in waited_for}

    def _children(self, key: ServiceKey) -> list[tuple[str, dict[str, Any]]]:
        return [(child.kind, dict(body)) for child, body in self._cache.children(key).items()]

    async def _given_up(self, key: ServiceKey, theirs: Owner, kind: Stance) -> bool:
        """Whether the other operator does nothing any more about this service; else it is looked at again."""
        now_s, timings = self._clock_s(), self._timings
        if kind is Stance.TAKE_OVER:
            left_s = self._moved_s.setdefault(key, now_s) + timings.handover_s - now_s
            over, again_s = left_s <= 0, left_s
        else:
            over, again_s = await self._is_gone(theirs, now_s), timings.rival_look_s
        if not over:
            self._tell(key, theirs, kind)
            self._look_again(key, max(again_s, 0.1))
        return over

    async def _is_gone(self, theirs: Owner, now_s: float) -> bool:
        """Its Lease is gone, free, or has not changed for the time that its holder promised."""
        try:
            lease = await self._leases.read_lease(theirs.lease_namespace, theirs.lease_name)
        except ApiError as error:
            log.info("lease_of_another_unread", extra={"operator": _named(theirs), "error": str(error)})
            return False
        if lease is None:
            return True
        known, seen = self._seen.get(theirs), _Seen(lease, now_s)
        if known is None or known.version != seen.version:
            self._seen[theirs] = known = seen
        return not known.held or now_s - known.since_s >= known.duration_s

    def _tell(self, key: ServiceKey, theirs: Owner, kind: Stance) -> None:
        if self._left.get(key) != theirs:
            self._left[key] = theirs
            self._prune()
            fields = {"service": str(key), "operator": _named(theirs), "shard": theirs.shard}
            event = "service_of_another_operator" if kind is Stance.LEAVE else "service_of_another_shard"
            log.warning(event, extra=fields)


def _named(owner: Owner) -> str:
    return f"{owner.lease_namespace}/{owner.lease_name}"
