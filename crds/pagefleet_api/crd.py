"""The CustomResourceDefinition, made from the types."""

from pagefleet_api import adapters, labels
from pagefleet_api.schema import rules
from pagefleet_api.service import Spec
from pagefleet_api.status import Status
from pagefleet_api.structural import Schema, structural

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
