"""Which operator a service belongs to: its shard by a label of the user's, its operator by a note on the Deployment.

Shards cannot overlap: a label has one value. Operators of one shard compete for one Lease if they are set up so; the
note keeps those apart that are not, as two releases that watch the same namespaces. Pure.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from pagefleet_api import labels


class Owner(NamedTuple):
    """One operator, whichever of its replicas acts: the Lease that they compete for, and their shard."""

    lease_namespace: str
    lease_name: str
    shard: str | None = None

    def notes(self) -> dict[str, str]:
        """As annotations."""
        shard = {} if self.shard is None else {labels.SHARD: self.shard}
        return {labels.OPERATOR: f"{self.lease_namespace}/{self.lease_name}", **shard}

    @classmethod
    def of(cls, body: Mapping[str, Any] | None) -> "Owner | None":
        """Who wrote an object; None when it does not say."""
        notes = ((body or {}).get("metadata") or {}).get("annotations") or {}
        namespace, slash, name = str(notes.get(labels.OPERATOR, "")).partition("/")
        return cls(namespace, name, notes.get(labels.SHARD)) if slash and namespace and name else None


class Stance(Enum):
    """What an operator does about a service that it watches."""

    ACT = "act"
    TAKE_OVER = "take over"
    """It was of another shard: act as soon as that one's operator must have noticed."""
    LEAVE = "leave"
    """Another operator acts: leave it alone for as long as that one lives."""


def stance(ours: Owner, theirs: Owner | None) -> Stance:
    """`theirs` is who wrote the service's Deployment last."""
    if theirs is None or theirs[:2] == ours[:2]:
        return Stance.ACT
    return Stance.LEAVE if theirs.shard == ours.shard else Stance.TAKE_OVER


def selector(shard: str | None) -> str:
    """The label selector of a shard's services; without a shard, of those that name none."""
    return f"!{labels.SHARD}" if shard is None else f"{labels.SHARD}={shard}"
