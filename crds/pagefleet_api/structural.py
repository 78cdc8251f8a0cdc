"""Structural schemas, made from the types.

Pydantic's JSON schema is not the structural schema that Kubernetes asks for: references are inlined,
`anyOf: [X, null]` becomes X (an absent field stays absent), titles and client-side defaults go, and
`additionalProperties: false` is never beside `properties`.
Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

import copy
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = ("title", "const", "default", "x-server-default", "$defs", "additionalProperties")


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a type."""
    schema = model.model_json_schema(by_alias=True)
    return _clean(schema, schema.get("$defs", {}))


def _clean(node: Schema, definitions: dict[str, Schema]) -> Schema:
    node = _resolved(node, definitions)
    result = {key: copy.deepcopy(value) for key, value in node.items() if key not in _DROPPED}
    if node.get("x-server-default"):
        result["default"] = node["default"]
    if "properties" in node:
        result["properties"] = {name: _clean(child, definitions) for name, child in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _clean(node["additionalProperties"], definitions)
    if "items" in node:
        result["items"] = _clean(node["items"], definitions)
    return result


def _resolved(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """`node` with its reference followed and its optional null taken off; what stands beside them wins."""
    while True:
        beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "allOf")}
        if "$ref" in node:
            node = {**definitions[node["$ref"].removeprefix("#/$defs/")], **beside}
        elif "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
            (only,) = [option for option in node["anyOf"] if option.get("type") != "null"]
            node = {**only, **beside}
        else:
            return node


def inside(schema: Schema, path: Iterable[str | int]) -> Schema:
    """The schema of a part; an empty one where it says nothing about it."""
    for name in path:
        named = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
        schema = schema.get("items", {}) if isinstance(name, int) else named
    return schema
