"""Strict validation of built-in kinds against the types of the Kubernetes client: unknown fields are errors."""

import re
from typing import Any

from kubernetes import client

_SCALARS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}
_GENERIC = re.compile(r"^(list|dict)[\[(](?:str, ?)?(.+)[\])]$", re.IGNORECASE)


def problems(manifest: dict[str, Any]) -> list[str]:
    """What is wrong with an object, one line a field; empty when it is valid."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    names = (f"{version.capitalize()}{manifest['kind']}", f"{group.split('.')[0].capitalize()}V1{manifest['kind']}")
    model = next((getattr(client, name) for name in names if hasattr(client, name)), None)
    if model is None:
        return [f"no type for {manifest['apiVersion']} {manifest['kind']}"]
    return _object(manifest, model, manifest["kind"])


def _object(value: Any, model: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{path}: not an object: {value!r}"]
    attributes = {wire: attribute for attribute, wire in model.attribute_map.items()}
    found = [f"{path}.{key}: unknown field" for key in value if key not in attributes]
    for key, child in value.items():
        if key in attributes:
            found += _value(child, model.openapi_types[attributes[key]], f"{path}.{key}")
    return found


def _value(value: Any, kind: str, path: str) -> list[str]:
    generic = _GENERIC.match(kind)
    if generic:
        wanted, inner = (list if generic[1].lower() == "list" else dict), generic[2]
        if not isinstance(value, wanted):
            return [f"{path}: not a {wanted.__name__}: {value!r}"]
        children = value.items() if isinstance(value, dict) else enumerate(value)
        return [line for key, child in children for line in _value(child, inner, f"{path}[{key}]")]
    if kind in _SCALARS:
        right = isinstance(value, _SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if right else [f"{path}: not a {kind}: {value!r}"]
    model = getattr(client, kind, None)
    return [] if model is None else _object(value, model, path)
