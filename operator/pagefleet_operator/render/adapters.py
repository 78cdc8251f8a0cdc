"""Where a pod's engine finds the adapters of its model, and what the pod needs for them to be there."""

from dataclasses import replace
from typing import Any

from pagefleet_api import labels
from pagefleet_api.model_source import CacheMode, ModelSource
from pagefleet_api.service import Spec
from pagefleet_operator.facts.mounts import ADAPTERS
from pagefleet_operator.render.fetcher import fetch_container
from pagefleet_operator.render.model import AdapterPath, ModelPlace, claim_name, claim_volume, resources_of

Part = dict[str, Any]

_CACHED = f"{ADAPTERS}/cached"
"""Where those are that were downloaded, each in the folder of its name in a cache."""


def with_adapters(spec: Spec, place: ModelPlace, fetch_image: str) -> ModelPlace:
    """The place of a service's model with its adapters; `fetch_image` downloads where each pod sees to that itself.

    A volume that the model is in is not mounted under a second name.
    """
    _, *sources = spec.model.sources
    for adapter, source in zip(spec.model.adapters, sources, strict=True):
        place = _with_adapter(adapter.name, source, spec, place, fetch_image)
    return place


def _with_adapter(name: str, source: ModelSource, spec: Spec, place: ModelPlace, image: str) -> ModelPlace:
    scheme, rest = source.location
    if scheme == "file":
        return replace(place, adapters=(*place.adapters, AdapterPath(name, rest)))
    if scheme == "pvc":
        claim, _, folder = rest.strip("/").partition("/")
        return _mounted(name, place, claim_volume(claim), f"{ADAPTERS}/{source.key}", folder)
    if source.fetched_by_pods:
        return _fetched(name, source, spec, place, image)
    if source.cache.mode is CacheMode.NODE:
        return _mounted(name, place, claim_volume(claim_name(source)), f"{_CACHED}/{source.key}", "")
    return _mounted(name, place, claim_volume(source.cache.pvc or ""), _CACHED, source.key)


def _fetched(name: str, source: ModelSource, spec: Spec, place: ModelPlace, image: str) -> ModelPlace:
    claim = source.cache.pvc
    volume: Part = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    found = _mounted(name, place, volume, _CACHED, source.key)
    written = {"name": _volume_name(volume, found), "mountPath": _CACHED}
    container = fetch_container(
        image,
        source,
        mounts=(written, {"name": "tmp", "mountPath": "/tmp"}),
        folder=f"{_CACHED}/{source.key}",
        resources=resources_of(spec),
        name=f"{labels.FETCH_ADAPTER_PREFIX}{len(place.adapters)}",
    )
    return replace(found, init_containers=(*found.init_containers, container))


def _mounted(name: str, place: ModelPlace, volume: Part, mount_path: str, folder: str) -> ModelPlace:
    known = _volume_name(volume, place)
    volume_name = known or f"{_VOLUME_PREFIX}{len(place.adapters)}"
    mount = {"name": volume_name, "mountPath": mount_path, "readOnly": True}
    return replace(
        place,
        volumes=place.volumes if known else (*place.volumes, {"name": volume_name, **volume}),
        mounts=place.mounts if mount in place.mounts else (*place.mounts, mount),
        adapters=(*place.adapters, AdapterPath(name, f"{mount_path}/{folder}".rstrip("/"))),
    )


_VOLUME_PREFIX = "adapters-"


def _volume_name(volume: Part, place: ModelPlace) -> str | None:
    """Of the volume with this source that there is already; None without one."""
    return next((str(each["name"]) for each in place.volumes if each == {"name": each["name"], **volume}), None)
