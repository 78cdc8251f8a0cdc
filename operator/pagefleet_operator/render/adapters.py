"""Where a pod's engine finds the adapters of its model and its draft, and what the pod needs for them to be there."""

from dataclasses import replace
from typing import Any, NamedTuple

from pagefleet_api import labels
from pagefleet_api.model_source import CacheMode, ModelSource
from pagefleet_api.service import Spec
from pagefleet_operator.facts.mounts import ADAPTERS
from pagefleet_operator.render.fetcher import fetch_container
from pagefleet_operator.render.model import AdapterPath, ModelPlace, claim_name, claim_volume, resources_of

Part = dict[str, Any]

_CACHED = f"{ADAPTERS}/cached"
"""Where those are that were downloaded, each in the folder of its name in a cache."""
_VOLUME_PREFIX = "adapters-"
_DRAFT = "draft"
"""It is found as an adapter is, and is told apart from them afterwards."""


def with_adapters(spec: Spec, place: ModelPlace, fetch_image: str) -> ModelPlace:
    """The place of a service's model with its adapters and its draft; `fetch_image` downloads where each pod sees to
    that itself.

    A volume that the model is in is not mounted under a second name.
    """
    _, *sources = spec.model.sources
    for number, adapter in enumerate(spec.model.adapters):
        fetcher = _Fetcher(fetch_image, f"{labels.FETCH_ADAPTER_PREFIX}{number}")
        place = _with_adapter(adapter.name, sources[number], spec, place, fetcher)
    if spec.model.draft is None:
        return place
    found = _with_adapter(_DRAFT, sources[-1], spec, place, _Fetcher(fetch_image, labels.FETCH_DRAFT_CONTAINER))
    return replace(found, adapters=place.adapters, draft=found.adapters[-1].path)


class _Fetcher(NamedTuple):
    image: str
    container: str


def _with_adapter(name: str, source: ModelSource, spec: Spec, place: ModelPlace, fetcher: _Fetcher) -> ModelPlace:
    scheme, rest = source.location
    if scheme == "file":
        return replace(place, adapters=(*place.adapters, AdapterPath(name, rest)))
    if scheme == "pvc":
        claim, _, folder = rest.strip("/").partition("/")
        return _mounted(name, place, claim_volume(claim), f"{ADAPTERS}/{source.key}", folder)
    if source.fetched_by_pods:
        return _fetched(name, source, spec, place, fetcher)
    if source.cache.mode is CacheMode.NODE:
        return _mounted(name, place, claim_volume(claim_name(source)), f"{_CACHED}/{source.key}", "")
    return _mounted(name, place, claim_volume(source.cache.pvc or ""), _CACHED, source.key)


def _fetched(name: str, source: ModelSource, spec: Spec, place: ModelPlace, fetcher: _Fetcher) -> ModelPlace:
    claim = source.cache.pvc
    volume: Part = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    found = _mounted(name, place, volume, _CACHED, source.key)
    written = {"name": _volume_name(volume, found), "mountPath": _CACHED}
    container = fetch_container(
        fetcher.image,
        source,
        mounts=(written, {"name": "tmp", "mountPath": "/tmp"}),
        folder=f"{_CACHED}/{source.key}",
        resources=resources_of(spec),
        name=fetcher.container,
    )
    return replace(found, init_containers=(*found.init_containers, container))


def _mounted(name: str, place: ModelPlace, volume: Part, mount_path: str, folder: str) -> ModelPlace:
    known = _volume_name(volume, place)
    volume_name = known or f"{_VOLUME_PREFIX}{len(place.adapters)}"
    mount = {"name": volume_name, "mountPath": mount_path, "readOnly": True}
    return replace(
        place,
        volumes=_with_volume({"name": volume_name, **volume}, place.volumes),
        mounts=place.mounts if mount in place.mounts else (*place.mounts, mount),
        adapters=(*place.adapters, AdapterPath(name, f"{mount_path}/{folder}".rstrip("/"))),
    )


def _volume_name(volume: Part, place: ModelPlace) -> str | None:
    """Of the volume that serves for this source; None without one."""
    return next((str(each["name"]) for each in place.volumes if _is_same(each, {"name": each["name"], **volume})), None)


def _is_same(one: Part, other: Part) -> bool:
    """Whether one volume serves for both: a claim is one in a pod, though a container writes to it and another reads.

    A kubelet never starts a pod that has a claim twice (kubernetes/kubernetes#82526, #132921).
    """
    claims = [(each.get("persistentVolumeClaim") or {}).get("claimName") for each in (one, other)]
    return claims[0] == claims[1] if any(claims) else one == other


def _with_volume(volume: Part, volumes: tuple[Part, ...]) -> tuple[Part, ...]:
    """With it beside them or in the place of the one of its name, if it is there for reading alone."""
    names = [each["name"] for each in volumes]
    if volume["name"] not in names:
        return (*volumes, volume)
    reads = "readOnly" in volume.get("persistentVolumeClaim", {})
    return tuple(volume if each["name"] == volume["name"] and not reads else each for each in volumes)
