"""What should exist: every object that an InferenceService owns, as pure values. Equal input, equal bytes."""

from pagefleet_operator.render.earlier import last_rolled_out, with_earlier_model
from pagefleet_operator.render.manifests import (
    Choices,
    Manifest,
    made_of,
    manifests,
    mounts_model,
    pinned_fetch_image,
    pinned_image,
    template_digest,
)
from pagefleet_operator.render.model import folders_on, template_of
from pagefleet_operator.render.node_cache import (
    NODE_CACHE,
    NodeStore,
    copied_secret,
    credentials,
    node_model,
    node_model_name,
)
from pagefleet_operator.render.pod import warnings
from pagefleet_operator.render.prefetch import fetch_job, fetched_onto, job_digest, job_name, stays

__all__ = [
    "NODE_CACHE",
    "Choices",
    "Manifest",
    "NodeStore",
    "copied_secret",
    "credentials",
    "fetch_job",
    "fetched_onto",
    "folders_on",
    "job_digest",
    "job_name",
    "last_rolled_out",
    "made_of",
    "manifests",
    "mounts_model",
    "node_model",
    "node_model_name",
    "pinned_fetch_image",
    "pinned_image",
    "stays",
    "template_digest",
    "template_of",
    "warnings",
    "with_earlier_model",
]
