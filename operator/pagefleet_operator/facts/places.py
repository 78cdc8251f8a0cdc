"""Where a pod of an engine that is not ours tells its load: written on the pod, so that each generation has its own."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from pagefleet_api import labels
from pagefleet_api.custom_engine import CustomEngine
from pagefleet_api.runtimes import Place, Runtime, custom_place, place


class _Note(BaseModel):
    model_config = ConfigDict(frozen=True)

    port: int
    path: str
    running: str
    waiting: str
    kv_usage: str | None


def noted(custom: CustomEngine) -> str | None:
    """The annotation for a custom engine's pods; None when it tells nothing."""
    told = custom.metrics
    if told is None:
        return None
    note = _Note(
        port=custom.port,
        path=custom.metrics_path,
        running=told.running,
        waiting=told.waiting,
        kv_usage=told.kv_usage,
    )
    return note.model_dump_json()


def is_foreign(pod_labels: Mapping[str, str]) -> bool:
    """Whether a pod has an engine that is not ours, which knows no drain of its own."""
    return labels.RUNTIME in pod_labels


def place_of(pod_labels: Mapping[str, str], annotations: Mapping[str, str]) -> Place | None:
    """Where a foreign engine's pod tells its load; None when it tells nothing that is known here."""
    try:
        runtime = Runtime(pod_labels.get(labels.RUNTIME, ""))
        if runtime is not Runtime.CUSTOM:
            return place(runtime)
        note = _Note.model_validate_json(annotations.get(labels.METRICS, ""))
    except (ValueError, ValidationError):
        return None
    return custom_place(**note.model_dump())
