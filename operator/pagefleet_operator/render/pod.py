"""The pod template: one engine container that the restricted Pod Security Standard admits.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pagefleet_api import labels
from pagefleet_api.gpus import Device
from pagefleet_api.service import InferenceService, Spec
from pagefleet_operator.render import chat_template, disk_cache, gpus
from pagefleet_operator.render.adapters import with_adapters
from pagefleet_operator.render.model import ModelPlace, model_place
from pagefleet_operator.render.model import warnings as model_warnings
from pagefleet_operator.render.overlay import merged
from pagefleet_operator.render.pod_security import loosened, restricted
from pagefleet_operator.render.runtimes import EngineParts, engine_parts, worker_parts
from pagefleet_operator.render.server_defaults import with_server_defaults

Part = dict[str, Any]

_USER_ID = 65532
_TMP = "/tmp"
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class PodImages(NamedTuple):
    """What a pod is made of beside the spec.

    engine: the engine's image. fetch: of what brings a model, where pods see to that. mounts_model: a model in an image
    is mounted from there, not copied.
    """

    engine: str
    fetch: str
    mounts_model: bool = False


def template(service: InferenceService, images: PodImages) -> Part:
    """Template of every pod that serves, with what the user laid over it."""
    place = _place(service.spec, images)
    own = _own_template(service, images.engine, place, engine_parts(service, place), labels.common(service.name))
    own["metadata"]["labels"][labels.SERVING] = labels.SERVING_TRUE
    return _whole(service, own)


def worker_template(service: InferenceService, images: PodImages) -> Part:
    """Template of the other pods of a group, which serve nobody and answer no probe: with the same laid over it."""
    place = _place(service.spec, images)
    marks = {labels.NAME: "pagefleet-engine-worker", **labels.worker(service.name)}
    whole = _whole(service, _own_template(service, images.engine, place, worker_parts(service, place), marks))
    engine = next(each for each in whole["spec"]["containers"] if each["name"] == labels.CONTAINER)
    for name in _PROBES:
        engine.pop(name, None)  # the overlay may have a part of one
    return whole


def _place(spec: Spec, images: PodImages) -> ModelPlace:
    model = model_place(spec, images.fetch, mounts_image=images.mounts_model)
    return with_adapters(spec, model, images.fetch)


def _whole(service: InferenceService, own: Part) -> Part:
    overlay = service.spec.pod_template
    whole: Part = with_server_defaults(own if overlay is None else merged(own, overlay))
    if len(whole["spec"]["containers"]) > 1:
        notes = {_DEFAULT_CONTAINER: labels.CONTAINER, **(whole["metadata"].get("annotations") or {})}
        whole["metadata"]["annotations"] = notes
    return whole


def warnings(service: InferenceService) -> tuple[str, ...]:
    """What a user should know of the pods that they asked for."""
    paced = service.spec.engine.device is Device.PACED
    rehearsal = ("spec.engine.device is paced: the answers are random, nothing is computed",) if paced else ()
    return (*model_warnings(service.spec.model), *_security_warnings(service), *rehearsal)


def _security_warnings(service: InferenceService) -> tuple[str, ...]:
    if service.spec.pod_template is None:
        return ()
    found = loosened(template(service, PodImages(engine="", fetch="")))
    words = f"spec.podTemplate is outside the restricted Pod Security Standard: {', '.join(found)}"
    return (words,) if found else ()


def _own_template(
    service: InferenceService, image: str, place: ModelPlace, engine: EngineParts, marks: Mapping[str, str]
) -> Part:
    """The operator's.

    The serving label is here and not in the Deployment's selector, so flipping it on one pod takes that pod out
    of the Service while its ReplicaSet keeps it. Nothing is requested of a node but what the user asks for:
    the weights' size is not known here, and a guess would be wrong in one direction or the other.
    """
    spec = service.spec
    annotations = {"annotations": dict(engine.annotations)} if engine.annotations else {}
    alike = (labels.MANAGED_BY, labels.SERVICE, labels.GROUP_OF)
    return {
        "metadata": {"labels": {**marks, **engine.pod_labels}, **annotations},
        "spec": {
            "serviceAccountName": service.child_name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": engine.leaving.grace_s,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER_ID,
                "runAsGroup": _USER_ID,
                "fsGroup": _USER_ID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {name: marks[name] for name in alike if name in marks}},
                }
            ],
            **({"initContainers": list(place.init_containers)} if place.init_containers else {}),
            "containers": [_container(service, image, place, engine)],
            "volumes": _volumes(spec, place, engine),
        },
    }


def _volumes(spec: Spec, place: ModelPlace, engine: EngineParts) -> list[Part]:
    tmp: Part = {"name": "tmp", "emptyDir": {}}
    return [
        tmp,
        *gpus.volumes(spec),
        *disk_cache.volumes(spec),
        *chat_template.volumes(spec),
        *place.volumes,
        *engine.volumes,
    ]


def _container(service: InferenceService, image: str, place: ModelPlace, engine: EngineParts) -> Part:
    spec = service.spec
    lists = {
        "command": engine.command,
        "args": engine.args,
        "ports": engine.ports,
        "env": [*gpus.environment(spec), *place.env, *engine.env],
        "envFrom": engine.env_from,
    }
    return {
        "name": labels.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        **{name: list(parts) for name, parts in lists.items() if parts},
        **_resources(spec),
        **engine.probes,
        **({"lifecycle": engine.leaving.lifecycle} if engine.leaving.lifecycle else {}),
        "securityContext": restricted(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": _TMP},
            *gpus.mounts(spec),
            *disk_cache.mounts(spec),
            *chat_template.mounts(spec),
            *place.mounts,
            *engine.mounts,
        ],
    }


def _resources(spec: Spec) -> Part:
    parts = {
        "requests": {**spec.resources.requests, **disk_cache.requests(spec)},
        "limits": {**spec.resources.limits, **gpus.limits(spec)},
    }
    given = {name: values for name, values in parts.items() if values}
    return {"resources": given} if given else {}
