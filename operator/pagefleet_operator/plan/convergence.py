"""Which rendered objects need a write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_operator.observed import Body, ChildKey

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply this manifest."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child that is not rendered any more; `uid` as precondition."""

    child: ChildKey
    uid: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object of that name belongs to someone else: it is left alone."""

    child: ChildKey
    message: str


Action = Apply | Delete | Conflict


def plan_children(rendered: Sequence[Manifest], live: Mapping[ChildKey, Body], owner_uid: str) -> tuple[Action, ...]:
    """Writes that make the live children as rendered; empty when nothing differs."""
    raise NotImplementedError
