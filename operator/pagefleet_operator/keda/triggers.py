"""What a ScaledObject's trigger asks for, read from its metadata (pure)."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from pagefleet_api.custom_metrics import CustomMetric


class BadTrigger(ValueError):
    """Metadata that cannot be used; the text names the key, the value and what it takes."""


class Trigger(NamedTuple):
    """One metric of one InferenceService, with its target a pod."""

    namespace: str
    service: str
    metric: CustomMetric
    target: float
    activation: float = 0.0
    """The service is active above this."""


def parse(namespace: str, metadata: Mapping[str, str]) -> Trigger:
    """The trigger. Raises BadTrigger."""
    metric = _given(metadata, "metric", f"one of {', '.join(CustomMetric)}")
    if metric not in set(CustomMetric):
        raise BadTrigger(f"metadata.metric: {metric!r} is no metric; give one of {', '.join(CustomMetric)}")
    target = _number(metadata, "target")
    if target <= 0:
        raise BadTrigger(f"metadata.target: {metadata['target']!r} must be above 0")
    service = _given(metadata, "inferenceService", "the name of an InferenceService in the ScaledObject's namespace")
    activation = _number(metadata, "activation") if "activation" in metadata else 0.0
    return Trigger(namespace, service, CustomMetric(metric), target, activation)


def _given(metadata: Mapping[str, str], key: str, what: str) -> str:
    if not metadata.get(key):
        raise BadTrigger(f"metadata.{key} is missing; give {what}")
    return metadata[key]


def _number(metadata: Mapping[str, str], key: str) -> float:
    text = _given(metadata, key, "a number, for example 4")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadTrigger(f"metadata.{key}: {text!r} is no number; give one, for example 4")
    return number
