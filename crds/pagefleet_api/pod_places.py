"""What `spec.podTemplate` says of the nodes that pods may go to, as far as the operator reads it itself.

It asks that before the API server has judged the pod, for each node again, and tolerations go into an object that
services of several namespaces share. So what is no pod is refused here, and how much there may be is bounded.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_api.pod_patch import DIRECTIVE
from pagefleet_api.schema import LABEL_VALUE, SUBDOMAIN
from pagefleet_api.wording import shown

MOST_SELECTED = 100
"""Labels in nodeSelector."""
MOST_TOLERATIONS = 100
MOST_TERMS = 100
"""Of a required node affinity."""
MOST_REQUIREMENTS = 200
"""In all terms together."""
MOST_VALUES = 5000
"""In all requirements together: names of nodes, for instance."""

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_LABEL_VALUE = re.compile(f"({LABEL_VALUE})?")
_QUALIFIED_NAME = re.compile(f"(({SUBDOMAIN})/)?{LABEL_VALUE}")
_PREFIX_CHARACTERS = 253
_SECONDS = range(-(2**63), 2**63)
_TEXTS_OF_TOLERATION = ("key", "operator", "value", "effect")
_SECONDS_OF_TOLERATION = "tolerationSeconds"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def place_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a pod's node selector, tolerations and required node affinity: the field and the way out."""
    selector, path = spec.get("nodeSelector"), "spec.nodeSelector"
    yield from _texts(selector, path)
    yield from _too_many(len(selector or ()), MOST_SELECTED, path, "labels")
    yield from _tolerations(spec.get("tolerations"), "spec.tolerations")
    inner, path = spec, "spec"
    for name in ("affinity", "nodeAffinity", REQUIRED):
        path = f"{path}.{name}"
        found = inner.get(name)
        if found is None:
            return
        if not isinstance(found, Mapping):
            yield f"{path} must be an object, but it is {shown(found)}"
            return
        inner = found
    yield from _terms(inner.get("nodeSelectorTerms"), f"{path}.nodeSelectorTerms")


def _too_many(number: int, most: int, path: str, noun: str) -> Iterator[str]:
    if number > most:
        yield f"{path} has {number} {noun}, and {most} are the most; leave the others out"


def _texts(value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, Mapping):
        yield f"{path} must be an object, but it is {shown(value)}"
        return
    for name, text in value.items():
        if text is not None and not isinstance(text, str):
            yield f"{path}.{name} must be a string, but it is {shown(text)}; put it in quotes"


def _objects(value: Any, path: str) -> Iterator[str]:
    """What keeps it from being a list of objects."""
    if value is not None and not isinstance(value, list):
        yield f"{path} must be a list, but it is {shown(value)}"
        return
    for index, item in enumerate(value or ()):
        if not isinstance(item, Mapping):
            yield f"{path}[{index}] must be an object, but it is {shown(item)}"


def _tolerations(value: Any, path: str) -> Iterator[str]:
    yield from _objects(value, path)
    yield from _too_many(len(value or ()), MOST_TOLERATIONS, path, "items")
    for index, item in enumerate(value or ()):
        if DIRECTIVE not in item:
            yield from _toleration(item, f"{path}[{index}]")


def _toleration(item: Mapping[str, Any], path: str) -> Iterator[str]:
    """Source: ValidateTolerations in kubernetes/pkg/apis/core/validation/validation.go (v1.34)."""
    for name in item:
        if name not in (*_TEXTS_OF_TOLERATION, _SECONDS_OF_TOLERATION) and not name.startswith("$"):
            yield f"{path}.{name} is no field of a toleration; they are {', '.join(_TEXTS_OF_TOLERATION)} and " + (
                _SECONDS_OF_TOLERATION
            )
    yield from _texts({name: item.get(name) for name in _TEXTS_OF_TOLERATION}, path)
    key, operator, value, effect = (item.get(name) or "" for name in _TEXTS_OF_TOLERATION)
    if operator not in ("", "Equal", "Exists"):
        yield f"{path}.operator is {shown(operator)}; use Exists, or Equal with a value"
    if effect not in ("", *_EFFECTS):
        yield f"{path}.effect is {shown(effect)}; use one of {', '.join(_EFFECTS)}, or leave it out for all"
    if not key and operator != "Exists":
        yield f"{path} has no key; give it, or operator: Exists for every taint"
    if key and not _is_qualified(key):
        yield f"{path}.key is {shown(key)}, which no taint can have; use a name such as nvidia.com/gpu"
    if value and operator == "Exists":
        yield f"{path}.value is {shown(value)}, and operator Exists takes none; leave it out"
    if not _LABEL_VALUE.fullmatch(value):
        yield f"{path}.value is {shown(value)}, which no taint can have; use letters, digits, -, _ and ."
    seconds = item.get(_SECONDS_OF_TOLERATION)
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int) or seconds not in _SECONDS:
        yield f"{path}.{_SECONDS_OF_TOLERATION} must be a whole number, but it is {shown(seconds)}"
    if effect != "NoExecute":
        yield f"{path}.{_SECONDS_OF_TOLERATION} is for effect NoExecute alone; leave it out"


def _is_qualified(name: str) -> bool:
    found = _QUALIFIED_NAME.fullmatch(name)
    return found is not None and len(found[2] or "") <= _PREFIX_CHARACTERS


def _terms(terms: Any, path: str) -> Iterator[str]:
    yield from _objects(terms, path)
    yield from _too_many(len(terms or ()), MOST_TERMS, path, "items")
    requirements: list[Mapping[str, Any]] = []
    for index, term in enumerate(terms or ()):
        for name in ("matchExpressions", "matchFields"):
            here = f"{path}[{index}].{name}"
            yield from _objects(term.get(name), here)
            for number, each in enumerate(term.get(name) or ()):
                yield from _requirement(each, f"{here}[{number}]")
                requirements.append(each)
    yield from _too_many(len(requirements), MOST_REQUIREMENTS, path, "requirements in all")
    yield from _too_many(
        sum(len(each.get("values") or ()) for each in requirements), MOST_VALUES, path, "values in all"
    )


def _requirement(item: Mapping[str, Any], path: str) -> Iterator[str]:
    operator, values = item.get("operator"), item.get("values")
    if not isinstance(item.get("key"), str):
        yield f"{path}.key must be a label's name, but it is {shown(item.get('key'))}"
    if operator not in _OPERATORS:
        yield f"{path}.operator is {shown(operator)}; use one of {', '.join(_OPERATORS)}"
    if values is not None and not (isinstance(values, list) and all(isinstance(each, str) for each in values)):
        yield f"{path}.values must be a list of strings, but it is {shown(values)}; put each in quotes"
    elif operator in ("Gt", "Lt") and not (values and len(values) == 1 and _NUMBER.fullmatch(values[0])):
        yield f"{path}.values must be one whole number for {operator}, but it is {shown(values)}"
