"""Merges `spec.podTemplate` into the rendered pod template, with the API server's own results.

Source: `mergeMap` and `mergeSlice` in k8s.io/apimachinery/pkg/util/strategicpatch/patch.go (v0.34), the order of lists
included. The overlay has been checked (`pagefleet_api.pod_template`). What the API server would leave to the decoder
(nulls in new values, directives without anything to work on) is dropped here.
"""

from collections.abc import Mapping
from typing import Any

from pagefleet_api.pod_template import DELETE, DIRECTIVE, REPLACE, RETAIN, TEMPLATE, Shape

Part = dict[str, Any]


def merged(template: Part, overlay: Mapping[str, Any]) -> Part:
    """The template with the overlay in it; neither is changed."""
    return _map(template, overlay, TEMPLATE)


def _map(original: Part, patch: Mapping[str, Any], shape: Shape) -> Part:
    directive = patch.get(DIRECTIVE)
    if directive is not None:
        return {} if directive == DELETE else _new_fields(patch)
    kept = patch.get(RETAIN)
    result = dict(original) if kept is None else {name: value for name, value in original.items() if name in kept}
    for name, value in patch.items():
        if name == RETAIN:
            continue
        if value is None:
            result.pop(name, None)
        elif name not in result:
            result.update(_new_fields({name: value}))
        else:
            result[name] = _value(result[name], value, shape.of(name))
    return result


def _value(original: Any, patch: Any, shape: Shape) -> Any:
    if isinstance(original, Mapping) and isinstance(patch, Mapping):
        return _map(dict(original), patch, shape)
    if shape.key is not None and isinstance(original, list):
        return _list(original, patch, shape.key, shape)
    return _new(patch)


def _list(original: list[Part], patch: list[Part], key: str, shape: Shape) -> list[Part]:
    """Items by their key: those of the patch in its order, each before the first of the others that follows it."""
    plain = [item for item in patch if DIRECTIVE not in item]
    if any(item.get(DIRECTIVE) == REPLACE for item in patch):
        return [_new_fields(item) for item in plain]
    deleted = [item.get(key) for item in patch if item.get(DIRECTIVE) == DELETE]
    stays = [item for item in original if item.get(key) not in deleted]
    before = {item.get(key): item for item in stays}
    changed: dict[Any, Part] = {}
    for item in plain:
        name = item[key]
        known = changed.get(name, before.get(name))
        changed[name] = _new_fields(item) if known is None else _map(known, item, Shape(fields=shape.fields))
    others = [item for item in stays if item.get(key) not in changed]
    return _woven(others, list(changed.values()), [item.get(key) for item in stays], key)


def _woven(others: list[Part], changed: list[Part], order: list[Any], key: str) -> list[Part]:
    """Two lists as one, each in its own order. One of `others` goes first only before one that it preceded."""
    result: list[Part] = []
    left, right = list(others), list(changed)
    while left and right:
        first, second = left[0].get(key), right[0].get(key)
        precedes = second in order and order.index(first) < order.index(second)
        result.append(left.pop(0) if precedes else right.pop(0))
    return result + left + right


def _new(value: Any) -> Any:
    """A value that nothing is merged with."""
    if isinstance(value, Mapping):
        return _new_fields(value)
    if isinstance(value, list):
        return [_new(item) for item in value if not (isinstance(item, Mapping) and DIRECTIVE in item)]
    return value


def _new_fields(value: Mapping[str, Any]) -> Part:
    fields = {name: part for name, part in value.items() if name not in {DIRECTIVE, RETAIN} and part is not None}
    return {name: _new(part) for name, part in fields.items() if not (isinstance(part, Mapping) and DIRECTIVE in part)}
