"""Merges `spec.podTemplate` into the rendered pod template, with the API server's own results.

Source: `mergeMap` and `mergeSlice` in k8s.io/apimachinery/pkg/util/strategicpatch/patch.go (v0.34), the order of lists
included. The overlay has been checked (`pagefleet_api.pod_template`). What the API server would leave to the decoder
(nulls in new values, directives without anything to work on) is dropped here.
"""

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

from pagefleet_api.pod_patch import DELETE, DIRECTIVE, REPLACE, RETAIN, TEMPLATE, Shape, new, new_fields

Part = dict[str, Any]


def merged(template: Part, overlay: Mapping[str, Any]) -> Part:
    """The template with the overlay in it; neither is changed."""
    return _map(copy.deepcopy(template), overlay, TEMPLATE)


def _map(mine: Part, patch: Mapping[str, Any], shape: Shape) -> Part:
    """`mine` with the patch in it, changed in place: a list may have thousands of patches for one item."""
    directive = patch.get(DIRECTIVE)
    if directive is not None:
        return {} if directive == DELETE else new_fields(patch)
    if RETAIN in patch:
        kept = {name for name in patch[RETAIN] if isinstance(name, str)}
        for name in mine.keys() - kept:
            del mine[name]
    for name, value in patch.items():
        if name == RETAIN:
            continue
        if value is None:
            mine.pop(name, None)
        elif name not in mine:
            mine.update(new_fields({name: value}))
        else:
            mine[name] = _value(mine[name], value, shape.of(name))
    return mine


def _value(mine: Any, patch: Any, shape: Shape) -> Any:
    if isinstance(mine, dict) and isinstance(patch, Mapping):
        return _map(mine, patch, shape)
    if shape.key is not None and isinstance(mine, list):
        return _list(mine, patch, shape.key, shape)
    return new(patch)


def _list(mine: list[Part], patch: list[Part], key: str, shape: Shape) -> list[Part]:
    """Items by their key: those of the patch in its order, each before the first of the others that follows it."""
    plain = [item for item in patch if DIRECTIVE not in item]
    if any(item.get(DIRECTIVE) == REPLACE for item in patch):
        return [new_fields(item) for item in plain]
    deleted = {item.get(key) for item in patch if item.get(DIRECTIVE) == DELETE}
    stays = {item.get(key): item for item in mine if item.get(key) not in deleted}
    changed: dict[Any, Part] = {}
    for item in plain:
        name = item[key]
        known = changed.get(name, stays.get(name))
        changed[name] = new_fields(item) if known is None else _map(known, item, Shape(fields=shape.fields))
    places = {name: place for place, name in enumerate(stays)}
    others = deque((places[name], item) for name, item in stays.items() if name not in changed)
    result: list[Part] = []
    for name, item in changed.items():  # one of the others goes first only before one that it preceded
        while others and others[0][0] < places.get(name, -1):
            result.append(others.popleft()[1])
        result.append(item)
    return result + [item for _, item in others]
