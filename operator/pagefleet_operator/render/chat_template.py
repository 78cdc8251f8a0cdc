"""A chat template from a ConfigMap, as a file that the engine reads."""

from typing import Any

from pagefleet_api.service import Spec

Part = dict[str, Any]

_FOLDER = "/etc/pagefleet/chat-template"
_FILE = "template.jinja"


def path(spec: Spec) -> str | None:
    """The file; None where the model's own template serves."""
    return f"{_FOLDER}/{_FILE}" if spec.engine.chat_template else None


def volumes(spec: Spec) -> list[Part]:
    """The ConfigMap."""
    if spec.engine.chat_template is None:
        return []
    source = spec.engine.chat_template.config_map_key_ref
    items = [{"key": source.key, "path": _FILE}]
    return [{"name": "chat-template", "configMap": {"name": source.name, "items": items}}]


def mounts(spec: Spec) -> list[Part]:
    """Where it is mounted."""
    if spec.engine.chat_template is None:
        return []
    return [{"name": "chat-template", "mountPath": _FOLDER, "readOnly": True}]
