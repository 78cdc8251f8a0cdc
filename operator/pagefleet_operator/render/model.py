"""Where a pod's engine finds its model, and what the pod needs for it to be there."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pagefleet_api.model_source import CacheMode, ModelSource
from pagefleet_api.service import Spec
from pagefleet_api.wording import some
from pagefleet_operator.facts.mounts import FILE, MODELS
from pagefleet_operator.render.fetcher import fetch_container
from pagefleet_operator.render.image_copy import copy_containers, copy_volumes

Part = dict[str, Any]

_VOLUME = "models"
_SECRET_DIGEST = 10


class AdapterPath(NamedTuple):
    """An adapter by its name, and its folder as a container sees it."""

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name}={self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlace:
    """A model as a container sees it, with its adapters and its draft.

    uri: as our own engine takes it. path: its folder or file; None where it is none (in a Python package).
    draft: the folder of the draft, where there is one.
    volumes, mounts, env, init_containers: what the pod needs for it to be there.
    """

    uri: str
    path: str | None
    volumes: tuple[Part, ...] = ()
    mounts: tuple[Part, ...] = ()
    env: tuple[Part, ...] = ()
    init_containers: tuple[Part, ...] = ()
    adapters: tuple[AdapterPath, ...] = ()
    draft: str | None = None


def model_place(spec: Spec, fetch_image: str, *, mounts_image: bool = False) -> ModelPlace:
    """The place of a service's model. `fetch_image` holds what brings it there, where each pod sees to that by itself.

    mounts_image: a model in an image is mounted as a volume, not copied out of it.
    """
    model = spec.model
    scheme, rest = model.location
    if scheme == "pkg":
        return ModelPlace(uri=model.uri, path=None)
    if scheme == "file":
        return ModelPlace(uri=model.uri, path=rest)
    if scheme == "pvc":
        claim, _, folder = rest.strip("/").partition("/")
        return _mounted(claim_volume(claim), folder)
    if scheme == "oci":
        image, _, folder = rest.partition("#")
        if mounts_image:
            return _mounted({"image": {"reference": image, "pullPolicy": "IfNotPresent"}}, folder)
        return _copied(spec, fetch_image, image, folder)
    if model.fetched_by_pods:
        return _fetched(spec, fetch_image)
    if model.cache.mode is CacheMode.NODE:
        return _of_node(model)
    return _mounted(claim_volume(model.cache.pvc or ""), _within(model))


def warnings(model: ModelSource) -> tuple[str, ...]:
    """What a user should know of the model, the adapters and the draft that they asked for."""
    names = ("model", *(f"model.adapters[{adapter.name}]" for adapter in model.adapters), "model.draft")
    loose = [
        f"spec.{name}.revision"
        for name, source in zip(names, model.sources, strict=False)
        if source.location.scheme == "hf" and source.revision is None
    ]
    if not loose:
        return ()
    absent = f"{some(loose)} {'is' if len(loose) == 1 else 'are'} absent"
    when = "whenever a pod starts" if model.cache.mode is CacheMode.NONE else "at the first download"
    return (f"{absent}, so the weights are those of the hub's default branch {when}; give a commit",)


def has_image_volume(workload: Mapping[str, Any]) -> bool:
    """Whether a live workload's pods mount the model from an image.

    An API server that knows no image volumes takes the volume from the template without a word.
    """
    volumes = (template_of(workload).get("spec") or {}).get("volumes") or ()
    return any(volume["name"] == _VOLUME and volume.get("image") for volume in volumes)


def template_of(workload: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The pod template of a Deployment, or of the leaders of a LeaderWorkerSet; empty where there is none."""
    spec = (workload or {}).get("spec") or {}
    found: Mapping[str, Any] = (
        (spec.get("leaderWorkerTemplate") or {}).get("leaderTemplate") or spec.get("template") or {}
    )
    return found


def folders_on(model: ModelSource, claim: str) -> set[str]:
    """Folders at the top of a claim that a service with this model reads, for its adapters too."""
    return {folder for source in model.sources for folder in _folders_of(source, claim)}


def _folders_of(model: ModelSource, claim: str) -> set[str]:
    scheme, rest = model.location
    name, _, folder = rest.partition("/")
    if scheme == "pvc":
        return {folder.partition("/")[0]} if name == claim else set()
    return {model.key} if model.cache.pvc == claim else set()


def _fetched(spec: Spec, image: str) -> ModelPlace:
    claim = spec.model.cache.pvc
    volume: Part = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    place = _mounted(volume, _within(spec.model))
    container = fetch_container(
        image,
        spec.model,
        mounts=({"name": _VOLUME, "mountPath": MODELS}, {"name": "tmp", "mountPath": "/tmp"}),
        folder=f"{MODELS}/{spec.model.key}",
        resources=resources_of(spec),
    )
    return replace(place, init_containers=(container,))


def _copied(spec: Spec, copier: str, image: str, folder: str) -> ModelPlace:
    """Each pod has a copy in its own storage, where the volume would have it; `copier` is an image of ours."""
    place = _mounted({"emptyDir": {}}, folder)
    containers = copy_containers(copier, image, folder, volume=_VOLUME, resources=resources_of(spec))
    return replace(place, volumes=(*place.volumes, *copy_volumes()), init_containers=containers)


def resources_of(spec: Spec) -> Part:
    """As the engine's, less the GPUs: a quota may ask them of every container."""
    resources = {"requests": dict(spec.resources.requests), "limits": dict(spec.resources.limits)}
    return {name: values for name, values in resources.items() if values}


def _mounted(source: Part, folder: str) -> ModelPlace:
    path = f"{MODELS}/{folder}".rstrip("/")
    return ModelPlace(
        uri=f"{FILE}{path}",
        path=path,
        volumes=({"name": _VOLUME, **source},),
        mounts=({"name": _VOLUME, "mountPath": MODELS, "readOnly": True},),
    )


def _of_node(model: ModelSource) -> ModelPlace:
    """The volume is the model's own folder, and nothing beside it."""
    folder, file = f"{MODELS}/{model.key}", model.location.file
    path = folder if file is None else f"{folder}/{file}"
    return ModelPlace(
        uri=f"{FILE}{path}",
        path=path,
        volumes=({"name": _VOLUME, **claim_volume(claim_name(model))},),
        mounts=({"name": _VOLUME, "mountPath": folder, "readOnly": True},),
    )


def claim_name(model: ModelSource) -> str:
    """Of the claim that gives a namespace's pods a model of their node."""
    secret = None if model.secret_ref is None else hashlib.sha256(model.secret_ref.name.encode()).hexdigest()
    return f"model-{model.key}" if secret is None else f"model-{model.key}-{secret[:_SECRET_DIGEST]}"


def claim_volume(name: str) -> Part:
    """The source of a volume that is read alone."""
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}


def _within(model: ModelSource) -> str:
    """Below the mount: the model's own folder, and its one file where the URI names one."""
    file = model.location.file
    return model.key if file is None else f"{model.key}/{file}"
