"""The Job that downloads a model onto a claim: one for all services of a namespace with that model and claim."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pagefleet_api import labels
from pagefleet_api.pod_patch import new_fields
from pagefleet_api.service import InferenceService
from pagefleet_operator.facts.mounts import MODELS
from pagefleet_operator.render.fetcher import fetch_container

Part = dict[str, Any]

_USER_ID = 65532
_TRIES = 1000
"""Of the pod, some five minutes apart in the end: a token that is put right counts without anybody's help."""
_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
_PLACING = ("nodeSelector", "affinity", "tolerations", "imagePullSecrets")
"""Of the service's pod template: where its pods can be, the claim can be mounted."""
_NAME_DIGEST = 6
_LIMIT, _IN_USE, _TELL = "--limit", "--in-use", "--tell"


def job_name(service: InferenceService) -> str:
    """The Job's name, which is the same for every service with this model and claim."""
    claim = hashlib.sha256((service.spec.model.cache.pvc or "").encode()).hexdigest()[:_NAME_DIGEST]
    return f"fetch-{service.spec.model.key}-{claim}"


def job_digest(service: InferenceService) -> str:
    """What of the service makes another download: credentials, limit, place."""
    model = service.spec.model
    parts = [model.secret_ref and model.secret_ref.name, model.cache.limit, _placing(service)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def owners(users: Sequence[InferenceService]) -> list[Part]:
    """References to every service that wants the model: the Job goes with the last of them."""
    by_name = sorted(users, key=lambda user: user.name)
    return [
        {"apiVersion": labels.API_VERSION, "kind": labels.KIND, "name": user.name, "uid": user.uid} for user in by_name
    ]


def fetch_job(
    service: InferenceService, users: Sequence[InferenceService], image: str, in_use: Collection[str]
) -> Part:
    """The Job as `service` would have it, owned by all its `users`.

    in_use: names of models on the claim that stay, whatever the limit.
    """
    model, name = service.spec.model, job_name(service)
    marks = {labels.MANAGED_BY: labels.FIELD_MANAGER, labels.NAME: "pagefleet-fetch", labels.MODEL: model.key}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": service.namespace,
            "labels": marks,
            "annotations": {labels.FETCH_DIGEST: job_digest(service)},
            "ownerReferences": owners(users),
        },
        "spec": {
            "backoffLimit": _TRIES,
            "template": {
                "metadata": {"labels": {**marks, labels.FETCH: name}},
                "spec": _pod(service, image, in_use),
            },
        },
    }


def fetched_onto(job: Mapping[str, Any], claim: str) -> str | None:
    """The folder of a claim that a live Job brings its model to; None for a Job of another claim."""
    volumes = job["spec"]["template"]["spec"].get("volumes") or ()
    claims = {(volume.get("persistentVolumeClaim") or {}).get("claimName") for volume in volumes}
    return str(job["metadata"]["labels"][labels.MODEL]) if claim in claims else None


def stays(job: Mapping[str, Any]) -> set[str] | None:
    """Names of the models that a live Job leaves on the claim; None when it removes none at all."""
    args = job["spec"]["template"]["spec"]["containers"][0].get("args") or []
    if _LIMIT not in args:
        return None
    own = job["metadata"]["labels"].get(labels.MODEL)
    return {own, *(name for flag, name in pairwise(args) if flag == _IN_USE)}


def _pod(service: InferenceService, image: str, in_use: Collection[str]) -> Part:
    model = service.spec.model
    mounts = ({"name": "models", "mountPath": MODELS}, {"name": "tmp", "mountPath": "/tmp"})
    container = fetch_container(
        image,
        model,
        mounts=mounts,
        folder=f"{MODELS}/{model.key}",
        resources=_RESOURCES,
        flags=(_TELL, f":{labels.ADMIN_PORT}", *_limit_flags(service, in_use)),
    )
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_placing(service),
        "containers": [container],
        "volumes": [
            {"name": "models", "persistentVolumeClaim": {"claimName": model.cache.pvc}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def _limit_flags(service: InferenceService, in_use: Collection[str]) -> list[str]:
    limit = service.spec.model.cache.limit
    if limit is None:
        return []
    others = sorted(set(in_use) - {service.spec.model.key})
    return [_LIMIT, limit, *(word for name in others for word in (_IN_USE, name))]


def _placing(service: InferenceService) -> Part:
    pod = (service.spec.pod_template or {}).get("spec") or {}
    return new_fields({name: pod.get(name) for name in _PLACING})
