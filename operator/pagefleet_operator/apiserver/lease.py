"""Who acts: one replica at a time, by a coordination.k8s.io Lease. The decision is pure; `Leadership` runs it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from pagefleet_operator.settings import Settings

log = logging.getLogger(__name__)


class Move(Enum):
    """What a replica does about the Lease next."""

    CREATE = "create"
    RENEW = "renew"
    TAKE = "take"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lease as last read, and since when (own monotonic clock) it has not changed."""

    holder: str | None
    duration_s: float
    unchanged_since_s: float


def decide(seen: Seen | None, identity: str, now_s: float) -> Move:
    """The next move of `identity`.

    Other clocks are never compared with ours: a holder is gone when its Lease has not changed for the
    duration that it promised, measured here.
    Source: https://pkg.go.dev/k8s.io/client-go/tools/leaderelection ("observed time").
    """
    if seen is None:
        return Move.CREATE
    if seen.holder == identity:
        return Move.RENEW
    if not seen.holder or now_s - seen.unchanged_since_s >= seen.duration_s:
        return Move.TAKE
    return Move.WAIT


def body(settings: Settings, live: dict[str, Any] | None, wall: datetime, *, holder: str | None) -> dict[str, Any]:
    """The Lease to write over `live`; its resource version makes a race lose instead of overwrite."""
    before = (live or {}).get("spec", {})
    now = wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    changed = before.get("holderIdentity") != holder
    spec = {
        "holderIdentity": holder or "",
        "leaseDurationSeconds": settings.timings.lease_duration_s,
        "acquireTime": now if changed else before.get("acquireTime", now),
        "renewTime": now,
        "leaseTransitions": before.get("leaseTransitions", 0) + (1 if changed and holder and live else 0),
    }
    metadata: dict[str, Any] = {"name": settings.lease_name, "namespace": settings.lease_namespace}
    if live is not None:
        metadata["resourceVersion"] = live["metadata"]["resourceVersion"]
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


class LeaseStore(Protocol):
    """Where the Lease is kept; `Cluster` is one."""

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The Lease, or None when there is none."""

    async def write_lease(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Create (without a resource version) or replace it; raises when another was faster."""


class Leadership:
    """Competes for the Lease until stopped.

    `holds()` turns false `lease_renew_deadline_s` after the start of the latest renewal that worked, by the
    clock alone: a replica that hangs or is cut off stops by itself before another may act. Every such loss is
    told to `changed`, also one that the next renewal ends at once: work was let go meanwhile.

    fit: whether this replica could do the work. One that could not takes no Lease, and renews none: another may
    have it when its time is over, as writes on their way must have ended.
    """

    def __init__(
        self,
        settings: Settings,
        store: LeaseStore,
        changed: Callable[[bool], None],
        errors: tuple[type[Exception], ...],
        fit: Callable[[], bool],
    ) -> None:
        self._settings, self._store, self._changed, self._errors = settings, store, changed, errors
        self._fit = fit
        self._live: dict[str, Any] | None = None
        self._seen: Seen | None = None
        self._renewed_s: float | None = None
        self._told = False

    def holds(self) -> bool:
        """Whether this replica may write now."""
        deadline_s = self._settings.timings.lease_renew_deadline_s
        return self._renewed_s is not None and time.monotonic() - self._renewed_s < deadline_s

    def holder(self) -> str | None:
        """Identity of the replica that holds the Lease, as last read; None when none does."""
        return self._seen.holder or None if self._seen is not None else None

    async def run(self) -> None:
        """Compete until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(self._settings.timings.lease_renew_s)

    async def release(self) -> None:
        """Let another replica act at once; called when everything that writes has stopped.

        That may have taken longer than the latest renewal lasts. The Lease is given up all the same while it is as we
        left it: its resource version makes sure of that.
        """
        self._renewed_s = None
        self._tell()
        if self.holder() == self._settings.identity:
            await self._guarded(self._write(holder=None))

    async def step(self) -> None:
        """Read the Lease and renew, take or leave it."""
        await self._guarded(self._compete())
        self._tell()

    async def _guarded(self, action: Awaitable[None]) -> None:
        try:
            await action
        except self._errors as error:
            log.warning("lease_step_failed", extra={"error": str(error), "holds": self.holds()})

    async def _compete(self) -> None:
        began_s = time.monotonic()
        await self._look(began_s)
        move = decide(self._seen, self._settings.identity, time.monotonic())
        if move is Move.WAIT or not self._fit():
            self._renewed_s = None
            return
        await self._write(holder=self._settings.identity)
        self._tell()  # the deadline may have passed since the latest telling
        self._renewed_s = began_s

    async def _look(self, now_s: float) -> None:
        live = await self._store.read_lease(self._settings.lease_namespace, self._settings.lease_name)
        if live is None:
            self._seen = None
        elif self._live is None or live["metadata"]["resourceVersion"] != self._live["metadata"]["resourceVersion"]:
            spec = live.get("spec", {})
            duration_s = spec.get("leaseDurationSeconds") or self._settings.timings.lease_duration_s
            self._seen = Seen(spec.get("holderIdentity"), float(duration_s), now_s)
        self._live = live

    async def _write(self, *, holder: str | None) -> None:
        written = await self._store.write_lease(body(self._settings, self._live, datetime.now(UTC), holder=holder))
        self._live = written
        duration_s = float(self._settings.timings.lease_duration_s)
        self._seen = Seen(holder, duration_s, time.monotonic())

    def _tell(self) -> None:
        holds = self.holds()
        if holds != self._told:
            self._told = holds
            log.info("leadership_gained" if holds else "leadership_lost", extra={"identity": self._settings.identity})
            self._changed(holds)
