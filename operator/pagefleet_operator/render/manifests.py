"""The list of children, and the two small ones."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_api import labels
from pagefleet_api.extent import KEPT
from pagefleet_api.service import InferenceService, Spec
from pagefleet_operator.facts.trials import Trial
from pagefleet_operator.kinds import GROUP_SET
from pagefleet_operator.ownership import Owner
from pagefleet_operator.render import groups, pod
from pagefleet_operator.render.model import has_image_volume

Manifest = dict[str, Any]

GENERATION = "pagefleet.io/generation"
"""Annotation on the Deployment: the service's generation that it was rendered for."""
ENGINE_DIGEST = "pagefleet.io/engine-digest"
"""Annotation on the Deployment: digest of all that the user says about the pods."""
ENGINE_IMAGE = "pagefleet.io/engine-image"
"""Annotation on the Deployment: the image it was rendered with; it stays while the digest does."""
FETCH_IMAGE = "pagefleet.io/fetch-image"
"""The same for the image of what brings the model to each pod."""
MODEL_IMAGE = "pagefleet.io/model-image"
"""The same for how a model comes out of its image: `mounted` or `copied`."""
PODS_SPEC = "pagefleet.io/pods-spec"
"""Annotation on the Deployment: what the user said about the pods when they were rolled out last, as JSON."""
_MOUNTED, _COPIED = "mounted", "copied"
PODS = {name for name, field in Spec.model_fields.items() if field.alias in KEPT}
_DIGEST_LENGTH = 16
_BUDGET_FROM = 2
"""Wanted pods from which on there is a budget: one that keeps the only pod would hold its node for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the user's object does not say and the operator decided.

    replicas: pods that the Deployment should have, draining ones among them.
    wanted: pods that should serve.
    image: of the engine; see `pinned_image`.
    fetch_image: of what downloads and copies models; see `pinned_fetch_image`.
    mounts_model: a model in an image is mounted from there, not copied; see `mounts_model`.
    max_surge, max_unavailable: for the rolling update; a number of pods or a percentage.
    paused, min_ready_s: what a template on trial asks of the Deployment's controller.
    trial: how far a trial is, for the Deployment's annotation.
    template: an earlier one to stay at in place of the service's own.
    complete: digest of the template that all groups served with once; None before that, and without groups.
    """

    replicas: int
    wanted: int
    image: str
    fetch_image: str
    max_surge: int | str
    max_unavailable: int | str
    mounts_model: bool = False
    paused: bool = False
    min_ready_s: int = 0
    trial: str | None = None
    template: Manifest | None = None
    complete: str | None = None
    owner: Owner | None = None
    """The operator that writes."""


def manifests(service: InferenceService, choices: Choices) -> list[Manifest]:
    """Everything an InferenceService owns, in the order it is applied."""
    budget = [] if choices.wanted < _BUDGET_FROM else [disruption_budget(service, choices.wanted, choices.replicas)]
    pods = group_set(service, choices) if service.spec.in_groups else deployment(service, choices)
    return [service_account(service), network_service(service), *budget, pods]


def service_account(service: InferenceService) -> Manifest:
    """An account without rights of its own; its token is mounted nowhere."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(service),
        "automountServiceAccountToken": False,
    }


def network_service(service: InferenceService) -> Manifest:
    """The address that clients use; a pod whose serving label is flipped leaves it at once."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service),
        "spec": {
            "type": "ClusterIP",
            "selector": {**labels.selector(service.name), labels.SERVING: labels.SERVING_TRUE},
            "ports": [
                {
                    "name": labels.PORT_NAME,
                    "port": labels.SERVICE_PORT,
                    "protocol": "TCP",
                    "targetPort": labels.PORT_NAME,
                }
            ],
        },
    }


def disruption_budget(service: InferenceService, wanted: int, replicas: int) -> Manifest:
    """Evictions take one pod at a time: the next one waits until as many serve as are wanted.

    Only serving pods count, so a scale-down that drains for minutes keeps no node from being drained. A pod that is
    not ready may always be evicted: it serves nobody, and could hold a node for ever. Of groups all pods count, as one
    that goes takes its group along: all but the leaders of those `replicas` that are not `wanted` any more.
    """
    stages = service.spec.engine.parallelism.pipeline
    draining = max(replicas - wanted, 0) * (stages - 1)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(service),
        "spec": {
            "minAvailable": wanted * stages + draining - 1,
            "selector": groups.selector(service.name) if service.spec.in_groups else _serving(service.name),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _serving(service: str) -> Manifest:
    return {"matchLabels": {**labels.selector(service), labels.SERVING: labels.SERVING_TRUE}}


def deployment(service: InferenceService, choices: Choices) -> Manifest:
    """The pods. `replicas` is always written, so that no default ever scales a living service."""
    held_back = {"paused": choices.paused or None, "minReadySeconds": choices.min_ready_s or None}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**_metadata(service), "annotations": _notes(service, choices)},
        "spec": {
            "replicas": choices.replicas,
            **{name: value for name, value in held_back.items() if value is not None},
            "selector": {"matchLabels": labels.selector(service.name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": choices.max_surge, "maxUnavailable": choices.max_unavailable},
            },
            "progressDeadlineSeconds": service.spec.rollout.progress_deadline_seconds,
            "revisionHistoryLimit": 3,
            "template": choices.template or asked_template(service, choices),
        },
    }


def group_set(service: InferenceService, choices: Choices) -> Manifest:
    """The pods of a service whose replicas are groups."""
    digest = template_digest(service, choices)
    complete = {labels.COMPLETE: digest} if choices.complete == digest else {}
    return {
        "apiVersion": GROUP_SET.api_version,
        "kind": GROUP_SET.name,
        "metadata": {
            **_metadata(service),
            "name": labels.group_set_name(service.name),
            "annotations": {**_notes(service, choices), **complete, **groups.annotations()},
        },
        "spec": groups.spec(
            asked_template(service, choices),
            digest,
            replicas=choices.replicas,
            max_surge=choices.max_surge,
            max_unavailable=choices.max_unavailable,
        ),
    }


def _notes(service: InferenceService, choices: Choices) -> dict[str, str]:
    """Annotations of the workload: what it was rendered from, for later passes."""
    return {
        GENERATION: str(service.generation),
        ENGINE_DIGEST: engine_digest(service),
        PODS_SPEC: service.spec.model_dump_json(include=PODS, exclude_none=True, exclude_unset=True, by_alias=True),
        ENGINE_IMAGE: choices.image,
        **_model_notes(service, choices),
        labels.TEMPLATE: template_digest(service, choices),
        **({} if choices.trial is None else {labels.TRIAL: choices.trial}),
        **(choices.owner.notes() if choices.owner else {}),
    }


def _model_notes(service: InferenceService, choices: Choices) -> dict[str, str]:
    """How pods come to their model, where that was decided here."""
    model = service.spec.model
    copied = model.in_image and not choices.mounts_model
    fetched = any(source.fetched_by_pods for source in model.sources)
    return {
        **({FETCH_IMAGE: choices.fetch_image} if fetched or copied else {}),
        **({MODEL_IMAGE: _COPIED if copied else _MOUNTED} if model.in_image else {}),
    }


def asked_template(service: InferenceService, choices: Choices) -> Manifest:
    """The pod template that the service asks for; of groups, their size and both templates."""
    make = groups.templates if service.spec.in_groups else pod.template
    return make(service, pod.PodImages(choices.image, choices.fetch_image, choices.mounts_model))


def template_digest(service: InferenceService, choices: Choices) -> str:
    """A digest of the pod template that the service asks for: another one is another generation of pods."""
    text = json.dumps(asked_template(service, choices), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def pinned_image(service: InferenceService, live: Mapping[str, Any] | None, default_image: str) -> str:
    """The user's image, else the one that the live Deployment was rendered with, else the operator's default.

    So an upgrade of the operator never changes the image of pods by itself; a change of the service's model or
    engine takes the new default.
    """
    if service.spec.engine.image is not None:
        return service.spec.engine.image
    return _kept(service, live, ENGINE_IMAGE) or default_image


def pinned_fetch_image(service: InferenceService, live: Mapping[str, Any] | None, default_image: str) -> str:
    """The image that brings the live Deployment's pods their model, else the operator's own, likewise."""
    return _kept(service, live, FETCH_IMAGE) or default_image


def mounts_model(service: InferenceService, live: Mapping[str, Any] | None, *, can: bool) -> bool:
    """Whether pods mount a model that is in an image; else each copies it. `can`: every node that they may go to can.

    What was decided stays likewise, as another way would be another template: nodes that come or go roll no pods. Only
    where the API server dropped the volume, the model is copied after all.
    """
    if live is None or not made_of(service, live):
        return can
    kept, has_it = _kept(service, live, MODEL_IMAGE), has_image_volume(live)
    return has_it if kept is None else kept == _MOUNTED and (has_it or _is_rolled_back(live))


def _is_rolled_back(live: Mapping[str, Any]) -> bool:
    """Whether the live Deployment has the template before the one that the service asks for."""
    trial = Trial.parse((live["metadata"].get("annotations") or {}).get(labels.TRIAL))
    return trial is not None and not trial.under_way


def _kept(service: InferenceService, live: Mapping[str, Any] | None, annotation: str) -> str | None:
    notes = ((live or {}).get("metadata") or {}).get("annotations") or {}
    return notes.get(annotation) if made_of(service, live) else None


def made_of(service: InferenceService, live: Mapping[str, Any] | None) -> bool:
    """Whether the live Deployment was rendered from what the service says of its pods now."""
    notes = ((live or {}).get("metadata") or {}).get("annotations") or {}
    return bool(notes.get(ENGINE_DIGEST) == engine_digest(service))


def engine_digest(service: InferenceService) -> str:
    """A digest of what the user says about the pods: model, engine, resources and drain.

    What the user leaves out is not in it, so that a new field or another default of a later operator does not
    change it. Replicas, autoscaling and roll-out are not in it either: scaling a service after the operator was
    upgraded must not roll its pods to the operator's new default image.
    """
    parts = service.spec.model_dump_json(include=PODS, exclude_none=True, exclude_unset=True)
    return hashlib.sha256(parts.encode()).hexdigest()[:_DIGEST_LENGTH]


def _metadata(service: InferenceService) -> dict[str, Any]:
    return {
        "name": service.child_name,
        "namespace": service.namespace,
        "labels": labels.common(service.name),
        "ownerReferences": [
            {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "name": service.name,
                "uid": service.uid,
                "controller": True,
            }
        ],
    }
