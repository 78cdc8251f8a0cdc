"""The form of a strategic merge patch on a pod template: how each field is merged, what makes it no patch.

Source: https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagefleet_api.wording import place, shown

Overlay = Mapping[str, Any]

DIRECTIVE = "$patch"
RETAIN = "$retainKeys"
REPLACE, DELETE = "replace", "delete"

MOST_ITEMS = 1000
"""Of a list that is merged by a key; each of them is compared with what runs, and kept by its key in managedFields."""
MOST_NAME_CHARACTERS = 512
"""Of a field's name. The longest that a pod takes, of a label with its prefix, has 317."""

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a field is merged: a list by `key` (without one it is replaced as a whole), a map field by field."""

    key: str | None = None
    fields: "Mapping[str, Shape]" = field(default_factory=dict)

    def of(self, name: str) -> "Shape":
        """The shape of a field."""
        return self.fields.get(name, PLAIN)


PLAIN = Shape()
_CONTAINERS = Shape(
    "name",
    {
        "ports": Shape("containerPort"),
        "env": Shape("name"),
        "volumeMounts": Shape("mountPath"),
        "volumeDevices": Shape("devicePath"),
    },
)
TEMPLATE = Shape(
    fields={
        "spec": Shape(
            fields={
                "containers": _CONTAINERS,
                "initContainers": _CONTAINERS,
                "volumes": Shape("name"),
                "imagePullSecrets": Shape("name"),
                "hostAliases": Shape("ip"),
                "topologySpreadConstraints": Shape("topologyKey"),
                "schedulingGates": Shape("name"),
                "resourceClaims": Shape("name"),
            }
        )
    }
)
"""Source: `patchMergeKey` and `patchStrategy` in k8s.io/api/core/v1/types.go (v0.34)."""


def new(value: Any) -> Any:
    """What a checked patch leaves where there is nothing that it could be merged with."""
    if isinstance(value, Mapping):
        return new_fields(value)
    if isinstance(value, list):
        return [new(item) for item in value if not _is_directive(item)]
    return value


def new_fields(value: Overlay) -> dict[str, Any]:
    """The same of a map."""
    fields = {name: part for name, part in value.items() if name not in {DIRECTIVE, RETAIN} and part is not None}
    return {name: new(part) for name, part in fields.items() if not _is_directive(part)}


def _is_directive(value: Any) -> bool:
    return isinstance(value, Mapping) and DIRECTIVE in value


def form_faults(value: Any, shape: Shape = TEMPLATE, path: _Path = ()) -> Iterator[str]:
    """What makes it no patch: directives that there are not, items of a merged list without their key."""
    if shape.key is not None and value is not None:
        yield from _merged_list(value, shape, path)
    elif isinstance(value, Mapping):
        yield from _directives(value, path)
        for name, part in value.items():
            yield from form_faults(part, shape.of(name), (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from form_faults(item, PLAIN, (*path, index))


def _directives(value: Overlay, path: _Path) -> Iterator[str]:
    for name in value:
        if not isinstance(name, str):
            yield f"{_at(path)}: {shown(name)} is no name of a field; put it in quotes"
        elif len(name) > MOST_NAME_CHARACTERS:
            yield f"{_at(path)}: {shown(name)} is no name of a field: {MOST_NAME_CHARACTERS} characters are the most"
        elif name.startswith("$") and name not in {DIRECTIVE, RETAIN}:
            yield f"{_at(path)}: {name} is not supported; use {DIRECTIVE} or {RETAIN}"
    if value.get(DIRECTIVE, REPLACE) not in (REPLACE, DELETE):  # no set: it may be anything
        yield f"{_at(path)}: {DIRECTIVE}: {shown(value[DIRECTIVE])} is none; use {REPLACE} or {DELETE}"
    if RETAIN not in value:
        return
    kept = value[RETAIN]
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        yield f"{_at(path)}: {RETAIN} must be a list of names"
        return
    lost = {str(name) for name, part in value.items() if part is not None} - {DIRECTIVE, RETAIN, *kept}
    for name in sorted(lost):
        yield f"{_at(path)}: {name} is set and not in {RETAIN}; add it there"


def _merged_list(value: Any, shape: Shape, path: _Path) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{_at(path)} must be a list"
        return
    if len(value) > MOST_ITEMS:
        yield f"{_at(path)} has {len(value)} items, and {MOST_ITEMS} are the most; leave the others out"
    for index, item in enumerate(value):
        here = (*path, index)
        if not isinstance(item, Mapping):
            yield f"{_at(here)} must be an object"
        elif shape.key not in item and item.get(DIRECTIVE) != REPLACE:
            yield f"{_at(here)} has no {shape.key}, by which this list is merged"
        elif not isinstance(item.get(shape.key, ""), str | int):
            yield f"{_at(here)}.{shape.key} must be a plain value, not {shown(item[shape.key])}"
        else:
            yield from form_faults(item, Shape(fields=shape.fields), here)


def _at(path: _Path) -> str:
    return place(path) or "the template"
