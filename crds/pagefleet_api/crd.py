"""The CustomResourceDefinition, made from the types.

Pydantic's JSON schema is not the structural schema that Kubernetes asks for: references are inlined,
`anyOf: [X, null]` becomes X (an absent field stays absent), titles and client-side defaults go, and
`additionalProperties: false` is never beside `properties`.
Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema
"""

import copy
from typing import Any

from pydantic import BaseModel

from pagefleet_api import adapters, labels
from pagefleet_api.schema import rules
from pagefleet_api.service import Spec
from pagefleet_api.status import Status

Schema = dict[str, Any]

PRINTER_COLUMNS = (
    ("Model", "string", ".spec.model.uri", 0),
    ("Ready", "string", ".status.ready", 0),
    ("Replicas", "integer", ".status.replicas", 0),
    ("Targets", "string", ".status.targets", 0),
    ("Min", "integer", ".spec.autoscaling.minReplicas", 0),
    ("Max", "integer", ".spec.autoscaling.maxReplicas", 0),
    ("GPU", "integer", ".status.gpus", 0),
    ("URL", "string", ".status.url", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)

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


def custom_resource_definition() -> Schema:
    """The whole CRD object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{labels.PLURAL}.{labels.GROUP}"},
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": labels.KIND,
                "listKind": f"{labels.KIND}List",
                "plural": labels.PLURAL,
                "singular": labels.KIND.lower(),
                "shortNames": ["infs"],
                "categories": ["all", "ai"],
            },
            "versions": [_version()],
        },
    }


def _version() -> Schema:
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "name": labels.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, "scale": scale},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "priority": priority}
            for name, kind, path, priority in PRINTER_COLUMNS
        ],
        "schema": {"openAPIV3Schema": _object_schema()},
    }


def _object_schema() -> Schema:
    return {
        "type": "object",
        "description": "A model served by a fleet of inference servers.",
        "required": ["spec"],
        **rules(adapters.SERVED_RULE),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(Spec),
            "status": structural(Status),
        },
    }
