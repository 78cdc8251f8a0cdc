"""Who holds back services of lower priority: one whose pods find no place, and not for ever."""

from datetime import datetime
from typing import NamedTuple

CLAIM_LIMIT_S = 900.0
"""So long pods without a place hold others back. It outlasts a drain (ten minutes by default) and a new node's start;
what has no place by then, as a pod that is larger than every node, may never get one."""


class Claim(NamedTuple):
    """What pods of a service wait for, how much the service matters, and how long they have waited.

    It is the service's, not a pod's: a pod in place of one that waited goes on with its wait.
    """

    priority: int = 0
    resource: str | None = None
    """A kind of GPU; None where they ask for CPU and memory alone."""
    since_s: float | None = None
    """Monotonic seconds; None while all of them have a place."""
    earlier_s: float = 0.0
    """Waits before this one, since a pod last got a place."""
    placed: datetime | None = None
    """When a pod last got a place, by the cluster's clock; None while none did."""
    template: str | None = None
    """Digest of what the pods are made from."""

    def holds(self, now_s: float) -> bool:
        """Whether services of lower priority stand back for it."""
        return self.since_s is not None and self.earlier_s + now_s - self.since_s < CLAIM_LIMIT_S

    def seen(self, now_s: float, *, waits: bool, placed: datetime | None, template: str | None = None) -> "Claim":
        """As it is now: whether pods wait, when the latest got its place, and what they are made from.

        A place, or other pods, which may fit where those did not, end what has counted; nothing else does.
        """
        placed_anew = placed is not None and (self.placed is None or placed > self.placed)
        if placed_anew or template != self.template:
            latest = placed if placed_anew else self.placed
            return self._replace(since_s=now_s if waits else None, earlier_s=0.0, placed=latest, template=template)
        if not waits:
            waited_s = 0.0 if self.since_s is None else now_s - self.since_s
            return self._replace(since_s=None, earlier_s=self.earlier_s + waited_s)
        return self._replace(since_s=now_s) if self.since_s is None else self
