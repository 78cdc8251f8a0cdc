"""Fields of a model that do not go together."""

from typing import Any

from tests.pagefleet_api.together.case import LORA, ON_VLLM, OTHERS, Case


def _model(words: str, field: str, **model: Any) -> Case:
    return Case({"model": {"uri": "file:///m", **model}}, "spec.model", field, words)


def _cache(words: str, field: str, **cache: Any) -> Case:
    return Case({"model": {"uri": "hf://o/n", "cache": cache}}, "spec.model.cache", field, words)


MODELS = (
    _model(f"model.revision v1 is for hf:// alone, not for uri s3://b/m; {OTHERS}", "revision")._replace(
        spec={"model": {"uri": "s3://b/m", "revision": "v1"}}
    ),
    _model(
        "model.secretRef hub is for models that are downloaded (hf, s3, gs, az, http, https), not for model.uri "
        "file:///m; leave it out: credentials of an oci:// registry belong into imagePullSecrets",
        "secretRef",
        secretRef={"name": "hub"},
    ),
    _model(
        "model.cache.mode Node is for models that are downloaded (hf, s3, gs, az, http, https), not for model.uri "
        "file:///m; leave model.cache out: other schemes have the model at hand",
        "cache.mode",
        cache={"mode": "Node"},
    ),
    _cache(
        "model.cache.pvc is required with model.cache.mode PVC; give the name of a PersistentVolumeClaim, or leave "
        "model.cache.mode out",
        "pvc",
        mode="PVC",
    ),
    _cache(
        "model.cache.pvc claim is for model.cache.mode PVC, not for mode Node; set mode: PVC, or leave pvc out",
        "pvc",
        mode="Node",
        pvc="claim",
    ),
    _cache(
        "model.cache.limit 1Gi is for model.cache.mode PVC, not for mode None; set mode: PVC, or leave limit out",
        "limit",
        limit="1Gi",
    ),
    _cache(
        "model.cache.prefetch false is for model.cache.mode PVC, not for mode Node; leave prefetch out",
        "prefetch",
        mode="Node",
        prefetch=False,
    ),
    _cache(
        "model.cache.prefetch false is not available with model.cache.limit 1Gi, which the download's Job keeps; leave "
        "prefetch or limit out",
        "prefetch",
        mode="PVC",
        pvc="claim",
        limit="1Gi",
        prefetch=False,
    ),
)
NAMED = (
    Case(
        {"model": {"uri": "file:///m", "adapters": [{**LORA, "uri": "s3://b/a", "revision": "v1"}]}},
        "spec.model.adapters[0]",
        "revision",
        f"model.adapters[sql].revision v1 is for hf:// alone, not for uri s3://b/a; {OTHERS}",
    ),
    Case(
        {
            "model": {"uri": "file:///m", "draft": {"uri": "s3://b/a", "revision": "v1"}},
            "engine": {**ON_VLLM, "speculative": {"method": "draft"}},
        },
        "spec.model.draft",
        "revision",
        f"model.draft.revision v1 is for hf:// alone, not for uri s3://b/a; {OTHERS}",
    ),
    Case(
        {"model": {"uri": "file:///m", "servedName": "sql", "adapters": [LORA]}},
        "",
        "spec.model.adapters",
        "model.adapters: sql is the model's own name for clients (model.servedName); give the adapter another one",
    ),
)
"""Of these the parser names a larger object, with the same words."""
