"""Defaults that the API server writes into values that are owned as a whole.

Elsewhere a default is a field that nobody owns. Inside such a value it would look as if somebody had changed ours, in
every pass anew. Source: `SetDefaults_ObjectFieldSelector` and others in kubernetes/pkg/apis/core/v1/defaults.go.
"""

from collections.abc import Mapping
from typing import Any

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "fieldRef": {"apiVersion": "v1"},
    "resourceFieldRef": {"divisor": "0"},
    "serviceAccountToken": {"expirationSeconds": 3600},
}


def with_server_defaults(value: Any) -> Any:
    """The same, with what the API server would add."""
    if isinstance(value, list):
        return [with_server_defaults(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    fields = {name: with_server_defaults(part) for name, part in value.items()}
    return {
        name: {**_DEFAULTS[name], **part} if name in _DEFAULTS and isinstance(part, Mapping) else part
        for name, part in fields.items()
    }
