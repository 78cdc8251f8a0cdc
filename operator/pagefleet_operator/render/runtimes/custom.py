"""An engine that the operator knows nothing of: the user's command and arguments, and what `engine.custom` says."""

from pagefleet_api import labels
from pagefleet_api.custom_engine import CustomEngine
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.places import noted
from pagefleet_operator.render.drain import leaving
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes.parts import EngineParts, foreign_labels, foreign_probes, port, variables


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What the user brings into the pod. Kubernetes replaces $(PAGEFLEET_MODEL) and the others in the arguments."""
    custom = service.spec.engine.custom or CustomEngine()
    note = noted(custom)
    return EngineParts(
        command=custom.command,
        args=service.spec.engine.extra_args,
        ports=[port(labels.PORT_NAME, custom.port)],
        env=variables(
            HOME="/tmp",
            PAGEFLEET_MODEL=model.path or model.uri,
            PAGEFLEET_SERVED_NAME=service.served_name,
            PAGEFLEET_PORT=str(custom.port),
            PAGEFLEET_DRAIN_TIMEOUT=str(service.spec.drain.timeout_seconds),
            **({"PAGEFLEET_ADAPTERS": ",".join(map(str, model.adapters))} if model.adapters else {}),
        ),
        probes=foreign_probes(custom.health_path),
        leaving=leaving(service.spec.drain, serves_through_lag=False),
        pod_labels=foreign_labels(Runtime.CUSTOM),
        annotations={} if note is None else {labels.METRICS: note},
    )
