"""What should exist: every object that an InferenceService owns, as pure values. Equal input, equal bytes."""

from pagefleet_operator.render.manifests import (
    Choices,
    Manifest,
    made_of,
    manifests,
    pinned_fetch_image,
    pinned_image,
    template_digest,
)
from pagefleet_operator.render.pod import warnings

__all__ = [
    "Choices",
    "Manifest",
    "made_of",
    "manifests",
    "pinned_fetch_image",
    "pinned_image",
    "template_digest",
    "warnings",
]
