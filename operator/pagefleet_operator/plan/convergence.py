"""Which children need a write: rendered fields are compared with the fields that we own, and what is no longer
rendered goes.

A field is ours when `managedFields` says so. An object needs no write when each rendered field is ours
with an equal value and nothing is ours that is not rendered; whatever others own does not matter.

Source of the tree's format: sigs.k8s.io/structured-merge-diff, `fieldpath.SerializePathElement`.
"""

import itertools
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_api import labels, quantity
from pagefleet_operator.facts.observed import Body, ChildKey, controller_of
from pagefleet_operator.kinds import WORKLOADS

Manifest = Mapping[str, Any]

_IDENTITY = frozenset({"apiVersion", "kind"})
_META_IDENTITY = frozenset({"name", "namespace"})
_QUANTITIES = frozenset({"limits", "requests", "sizeLimit", "divisor"})
"""Fields with quantities in or below them: the API server writes 1000m as 1."""
_MOST_KEYS = 4
"""Of one list; Kubernetes' have three at most. More are none that the API server made of what we applied."""
_Key = tuple[Hashable, ...]


_ZEROS = ("", False, 0)
"""The API server leaves these out when it gives an object back; who sets another value takes the field from us."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply this manifest."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete this child as it was seen: the spec no longer asks for it."""

    child: ChildKey
    live: Body


@dataclass(frozen=True, slots=True)
class Resize:
    """Give this workload, which another one follows, so many replicas."""

    child: ChildKey
    live: Body
    replicas: int


@dataclass(frozen=True, slots=True)
class Wait:
    """An object of that name is on its way out: look again soon, and make ours when it is gone."""

    child: ChildKey
    message: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """An object of that name belongs to someone else: it is left alone."""

    child: ChildKey
    message: str


Action = Apply | Remove | Resize | Wait | Conflict


def plan_children(rendered: Sequence[Manifest], live: Mapping[ChildKey, Body]) -> tuple[Action, ...]:
    """Writes that make the live children as rendered, in the order of `rendered`; then those that go.

    `live` holds the objects that have a child's name or this service's label. Each manifest names its service as
    controller.
    """
    actions: list[Action] = []
    for manifest in rendered:
        body = live.get(ChildKey.of(manifest))
        hindrance = None if body is None else obstacle(manifest, body)
        if hindrance is not None:
            actions.append(hindrance)
        elif body is None or not up_to_date(manifest, body):
            actions.append(Apply(manifest))
    return (*actions, *_superfluous(rendered, live))


def without_pods(actions: Iterable[Action]) -> tuple[Action, ...]:
    """The same without writes of workloads: what pods there are stay as they are."""
    kept = (each for each in without_removals(actions) if not isinstance(each, Resize))
    return tuple(each for each in kept if not (isinstance(each, Apply) and each.manifest["kind"] in WORKLOADS))


def without_removals(actions: Iterable[Action]) -> tuple[Action, ...]:
    """The same without the removal of workloads."""
    return tuple(each for each in actions if not (isinstance(each, Remove) and each.child.kind in WORKLOADS))


def _superfluous(rendered: Sequence[Manifest], live: Mapping[ChildKey, Body]) -> Iterator[Remove]:
    """Live children of this very service that we applied and nothing asks for any more."""
    asked_for = {ChildKey.of(manifest) for manifest in rendered}
    owners = {(controller_of(manifest) or {}).get("uid") for manifest in rendered}
    for child, body in live.items():
        mine = (controller_of(body) or {}).get("uid") in owners and _our_fields(body) is not None
        if mine and child not in asked_for and body["metadata"].get("deletionTimestamp") is None:
            yield Remove(child, body)


def obstacle(manifest: Manifest, live: Body) -> Wait | Conflict | None:
    """What forbids to write `manifest` over `live`; None when that is ours and stays.

    A service that was deleted and made again finds the children of its predecessor until the garbage collector
    has been there. An object of anybody else is never taken over.
    """
    child, ours, theirs = ChildKey.of(manifest), controller_of(manifest) or {}, controller_of(live)
    mine = theirs is not None and theirs["uid"] == ours.get("uid")
    if mine and live["metadata"].get("deletionTimestamp") is None:
        return None
    what = f"{child.kind} {child.name}"
    if mine:
        return Wait(child, f"{what} is being deleted; it is made again when it is gone")
    if theirs is not None and _service(theirs) == _service(ours):
        return Wait(child, f"{what} is left of an earlier service of this name; it is made again when it is gone")
    whose = "it belongs to no controller" if theirs is None else f"{_named(theirs)} controls it"
    return Conflict(child, f"{what} exists and is not ours ({whose}); delete it or rename the service")


def up_to_date(manifest: Manifest, live: Body) -> bool:
    """Whether applying `manifest` would change nothing in `live`."""
    tree = _our_fields(live)
    if tree is None:
        return False
    rendered = {name: value for name, value in manifest.items() if name not in _IDENTITY}
    meta = {name: value for name, value in manifest["metadata"].items() if name not in _META_IDENTITY}
    return _same_map({**rendered, "metadata": meta or None}, live, tree, quantities=False)


def _our_fields(live: Body) -> Body | None:
    for entry in live["metadata"].get("managedFields") or ():
        ours = entry.get("manager") == labels.FIELD_MANAGER and entry.get("operation") == "Apply"
        if ours and not entry.get("subresource"):
            tree: Body = entry.get("fieldsV1") or {}
            return tree
    return None


def _same(rendered: Any, live: Any, tree: Body, *, quantities: bool) -> bool:
    """One value: below a leaf of the tree it is ours as a whole, else part by part."""
    parts = {name: part for name, part in tree.items() if name != "."}
    if _nothing(rendered):
        return not parts
    if isinstance(rendered, Mapping) and isinstance(live, Mapping) and parts:
        return _same_map(rendered, live, parts, quantities=quantities)
    if isinstance(rendered, list) and isinstance(live, list) and parts:
        return _same_list(rendered, live, parts)
    return _equal(rendered, live, quantities=quantities)


def _same_map(rendered: Body, live: Body, tree: Body, *, quantities: bool) -> bool:
    """A map whose fields are owned one by one; an empty value asks for nothing, so it need not be owned."""
    given = {f"f:{name}": name for name, value in rendered.items() if value is not None}
    if any(field not in given for field in tree if field.startswith("f:")):
        return False
    return all(
        _same(rendered[name], live.get(name), tree[field], quantities=quantities or name in _QUANTITIES)
        if field in tree
        else _nothing(rendered[name])
        for field, name in given.items()
    )


def _same_list(rendered: list[Any], live: list[Any], tree: Body) -> bool:
    """A list whose items are owned one by one: by keys (`k:`) or as members of a set (`v:`).

    Each item is found by an index: a service may have thousands of environment variables.
    """
    ours = [(json.loads(name[2:]), part) for name, part in tree.items()]
    if len(ours) != len(rendered):
        return False
    if all(name.startswith("v:") for name in tree):
        both = {_token(value) for value in rendered} & {_token(value) for value in live}
        return all(_token(value) in both for value, _ in ours)
    names, *others = {tuple(keys) for keys, _ in ours}
    if others or len(names) > _MOST_KEYS:
        return False
    wanted, found = _by_keys(rendered, names), _by_keys(live, names)
    return all(_same_item(keys, part, wanted, found) for keys, part in ours)


def _by_keys(items: list[Any], names: Sequence[str]) -> dict[_Key, Body]:
    """The first item with each key; None stands for what an item leaves out."""
    found: dict[_Key, Body] = {}
    for item in items:
        if isinstance(item, Mapping):
            found.setdefault(tuple(_token(item.get(name)) for name in names), item)
    return found


def _same_item(keys: Body, tree: Body, rendered: Mapping[_Key, Body], live: Mapping[_Key, Body]) -> bool:
    """The item with these keys; a rendered one may leave out a key that the API server fills in."""
    key = tuple(_token(value) for value in keys.values())
    filled_in = itertools.product(*((value, None) for value in key))
    wanted = next((rendered[each] for each in filled_in if each in rendered), None)
    found = live.get(key)
    if wanted is None or found is None:
        return False
    if not tree:
        return _equal({**keys, **wanted}, found, quantities=False)
    return _same({**keys, **wanted}, found, {**{f"f:{name}": {} for name in keys}, **tree}, quantities=False)


def _token(value: Any) -> Hashable:
    """Equal for equal values; maps and lists, which no key is but which a user may write for one, are their text."""
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else value


def _equal(rendered: Any, live: Any, *, quantities: bool) -> bool:
    """Equal values; an absent key is one with nothing in it, a quantity is its number."""
    if isinstance(rendered, Mapping) and isinstance(live, Mapping):
        names = rendered.keys() | live.keys()
        return all(
            _equal(rendered.get(name), live.get(name), quantities=quantities or name in _QUANTITIES) for name in names
        )
    if isinstance(rendered, list) and isinstance(live, list):
        pairs = zip(rendered, live, strict=False)
        return len(rendered) == len(live) and all(_equal(a, b, quantities=quantities) for a, b in pairs)
    if quantities and rendered is not None and live is not None:
        return bool(_number(rendered) == _number(live))
    if live is None and rendered in _ZEROS:
        return True
    return bool(rendered == live) or (_nothing(rendered) and _nothing(live))


def _nothing(value: Any) -> bool:
    return value is None or value == {} or value == []


def _number(value: Any) -> Any:
    try:
        return quantity.parse(str(value))
    except ValueError:
        return value


def _service(reference: Body) -> tuple[object, ...]:
    """Group, kind and name of an owner, whatever its version and uid."""
    return str(reference.get("apiVersion")).partition("/")[0], reference.get("kind"), reference.get("name")


def _named(reference: Body) -> str:
    return f"{reference.get('kind')} {reference.get('name')}"
