"""Pod objects as the API server lists them, with what discovery reads."""

from collections.abc import Mapping
from typing import Any


def pod(
    namespace: str,
    name: str,
    address: str | None,
    ports: Mapping[str, int],
    labels: Mapping[str, str],
    phase: str = "Running",
) -> dict[str, Any]:
    """A pod with one container; `ports` by name."""
    declared = [{"name": port, "containerPort": number, "protocol": "TCP"} for port, number in ports.items()]
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": dict(labels)},
        "spec": {"containers": [{"name": "engine", "ports": declared}]},
        "status": {"phase": phase, **({} if address is None else {"podIP": address})},
    }
