"""Blocks on the disk have room in what a pod takes of it, and memory before them; else the field is refused."""

from typing import Any

import pytest

from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_runtimes import engine

CACHE = {"hostOffload": "32Gi", "diskOffload": "200Gi"}
ROOMY: tuple[dict[str, Any], ...] = (
    {},
    {"requests": {"cpu": 1}, "limits": {"memory": "64Gi"}},
    {"requests": {"ephemeral-storage": "200Gi"}},
    {"limits": {"ephemeral-storage": "201Gi"}},
)
REFUSED: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"diskOffload": "200Gi"}, {}, "engine.kvCache.diskOffload 200Gi needs engine.kvCache.hostOffload"),
    ({**CACHE, "diskOffload": "1Mi"}, {}, "must be at least 1Gi and at most 1Pi"),
    (
        CACHE,
        {"requests": {"ephemeral-storage": "200G"}},
        "engine.kvCache.diskOffload 200Gi must not be above resources.requests.ephemeral-storage 200G, by which pods",
    ),
    (
        CACHE,
        {"limits": {"ephemeral-storage": "200Gi"}},
        "engine.kvCache.diskOffload 200Gi must be below resources.limits.ephemeral-storage 200Gi, which it is a part",
    ),
)


ADAPTER = {"name": "sql", "uri": "pvc://trained/sql"}
ADAPTED = "engine.kvCache.diskOffload 200Gi is not available with model.adapters: SGLang finds blocks on the disk"


def spec(cache: dict[str, Any], resources: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"uri": "file:///m"},
        "engine": engine(Runtime.SGLANG, device="cuda", kvCache=cache),
        "resources": resources,
    }


def with_adapters(*adapters: dict[str, Any]) -> dict[str, Any]:
    fields = spec(CACHE, {})
    return {**fields, "model": {**fields["model"], "adapters": list(adapters)}}


def parsed(cache: dict[str, Any], resources: dict[str, Any]) -> InferenceService:
    return read(spec(cache, resources))


def read(fields: dict[str, Any]) -> InferenceService:
    return InferenceService.parse({"metadata": {"namespace": "n", "name": "s", "uid": "u"}, "spec": fields})


@pytest.mark.parametrize("resources", ROOMY)
def test_a_disk_cache_fits_what_pods_take_of_a_disk(resources: dict[str, Any]) -> None:
    assert parsed(CACHE, resources).spec.engine.kv_cache.disk_offload == "200Gi"


@pytest.mark.parametrize(("cache", "resources", "says"), REFUSED)
def test_a_disk_cache_without_room_is_refused(cache: dict[str, Any], resources: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        parsed(cache, resources)
    assert says in str(refusal.value)


def test_no_adapter_is_given_what_another_one_has_on_the_disk() -> None:
    with pytest.raises(InvalidService, match=ADAPTED):
        read(with_adapters(ADAPTER))
    assert read(with_adapters()).spec.engine.kv_cache.disk_offload == "200Gi"
