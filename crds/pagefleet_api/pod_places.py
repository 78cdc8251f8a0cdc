"""What `spec.podTemplate` says of the nodes that pods may go to, as far as the operator reads it itself.

It asks that before the API server has judged the pod, so what is no pod is refused here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def place_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a pod's node selector, tolerations and required node affinity: the field and the way out."""
    yield from _texts(spec.get("nodeSelector"), "spec.nodeSelector")
    yield from _tolerations(spec.get("tolerations"), "spec.tolerations")
    inner, path = spec, "spec"
    for name in ("affinity", "nodeAffinity", _REQUIRED):
        path = f"{path}.{name}"
        found = inner.get(name)
        if found is None:
            return
        if not isinstance(found, Mapping):
            yield f"{path} must be an object, but it is {found!r}"
            return
        inner = found
    yield from _terms(inner.get("nodeSelectorTerms"), f"{path}.nodeSelectorTerms")


def _texts(value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        yield f"{path} must be an object, but it is {value!r}"
        return
    for name, text in value.items():
        if text is not None and not isinstance(text, str):
            yield f"{path}.{name} must be a string, but it is {text!r}; put it in quotes"


def _objects(value: Any, path: str) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The items of a list of objects, and what is wrong with it."""
    if value is None:
        return [], []
    if not isinstance(value, list):
        return [], [f"{path} must be a list, but it is {value!r}"]
    faults = [
        f"{path}[{index}] must be an object, but it is {item!r}"
        for index, item in enumerate(value)
        if not isinstance(item, Mapping)
    ]
    return ([], faults) if faults else (value, [])


def _tolerations(value: Any, path: str) -> Iterator[str]:
    items, faults = _objects(value, path)
    yield from faults
    for index, item in enumerate(items):
        texts = {name: item.get(name) for name in ("key", "operator", "value", "effect")}
        yield from _texts(texts, f"{path}[{index}]")


def _terms(value: Any, path: str) -> Iterator[str]:
    terms, faults = _objects(value, path)
    yield from faults
    for index, term in enumerate(terms):
        for name in ("matchExpressions", "matchFields"):
            here = f"{path}[{index}].{name}"
            requirements, faults = _objects(term.get(name), here)
            yield from faults
            for number, each in enumerate(requirements):
                yield from _requirement(each, f"{here}[{number}]")


def _requirement(item: Mapping[str, Any], path: str) -> Iterator[str]:
    operator, values = item.get("operator"), item.get("values")
    if not isinstance(item.get("key"), str):
        yield f"{path}.key must be a label's name, but it is {item.get('key')!r}"
    if operator not in _OPERATORS:
        yield f"{path}.operator is {operator!r}; use one of {', '.join(_OPERATORS)}"
    if values is not None and not (isinstance(values, list) and all(isinstance(each, str) for each in values)):
        yield f"{path}.values must be a list of strings, but it is {values!r}; put each in quotes"
    elif operator in ("Gt", "Lt") and not (values and len(values) == 1 and _NUMBER.fullmatch(values[0])):
        yield f"{path}.values must be one whole number for {operator}, but it is {values!r}"
