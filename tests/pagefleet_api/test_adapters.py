"""Adapters of a model: who may have them, what they may be called, and what each comes from."""

from typing import Any

import pytest

from pagefleet_api.model_source import CacheMode, ModelCache, ModelSource
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_runtimes import engine

SQL = {"name": "sql", "uri": "hf://org/sql-lora"}
TAKES = (Runtime.PAGEFLEET, Runtime.VLLM, Runtime.SGLANG, Runtime.TGI, Runtime.CUSTOM)


def service(*adapters: dict[str, Any], runtime: Runtime = Runtime.VLLM, **model: Any) -> InferenceService:
    fields: dict[str, Any] = {"uri": "file:///m", **model, "adapters": list(adapters)}
    spec = {"model": fields, "engine": engine(runtime)}
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec})


@pytest.mark.parametrize("runtime", Runtime)
def test_an_engine_has_adapters_or_the_refusal_says_why_and_what_to_use(runtime: Runtime) -> None:
    if runtime in TAKES:
        assert service(SQL, runtime=runtime).spec.model.adapters[0].name == "sql"
        return
    with pytest.raises(InvalidService, match=rf"model.adapters is not available with engine.runtime {runtime}: .*use"):
        service(SQL, runtime=runtime)
    service(runtime=runtime)


@pytest.mark.parametrize(
    ("adapters", "more", "words"),
    [
        ([{**SQL, "name": "s"}], {}, "spec.model.adapters: s is the model's own name for clients"),
        ([{**SQL, "name": "m"}], {"servedName": "m"}, "spec.model.adapters: m is the model's own name for clients"),
        ([SQL, SQL], {}, "model.adapters has two of the name sql; give each adapter a name of its own"),
        ([{**SQL, "name": "a=b"}], {}, "spec.model.adapters[0].name"),
        ([{**SQL, "name": "a:b"}], {}, "spec.model.adapters[0].name"),
        ([{**SQL, "rank": 0}], {}, "spec.model.adapters[0].rank"),
        ([{"name": "a"}], {}, "spec.model.adapters[0].uri"),
        ([{**SQL, "name": f"a{number}"} for number in range(33)], {}, "spec.model.adapters"),
    ],
)
def test_a_name_is_a_models_name_of_its_own(adapters: list[Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        service(*adapters, **more)
    assert words in str(refusal.value)


def test_the_name_of_the_object_is_free_once_another_one_is_served() -> None:
    assert service({**SQL, "name": "s"}, servedName="m").served_name == "m"


def test_each_source_has_credentials_and_cache_only_where_it_is_downloaded() -> None:
    cache = {"mode": "PVC", "pvc": "models"}
    model = ModelSource.model_validate(
        {"uri": "pvc://base/llama", "secretRef": {"name": "t"}, "cache": cache, "adapters": [
            {**SQL, "revision": "v1"}, {"name": "own", "uri": "pvc://trained/own"}]}
    )  # fmt: skip
    base, sql, own = model.sources
    assert (base.uri, base.secret_ref, base.cache) == ("pvc://base/llama", None, ModelCache())
    assert (sql.uri, sql.revision, sql.cache.mode) == ("hf://org/sql-lora", "v1", CacheMode.PVC)
    assert sql.secret_ref is not None
    assert (own.secret_ref, own.cache) == (None, ModelCache())
    assert [model.called(source) for source in model.sources] == ["the model", "adapter sql", "adapter own"]


def test_what_two_adapters_share_is_one_part_of_the_service() -> None:
    shared = service(SQL, {**SQL, "name": "sql-too"})
    assert [part.spec.model.uri for part in shared.parts] == ["file:///m", "hf://org/sql-lora"]
    itself = service(SQL, uri=SQL["uri"], servedName="m")
    assert [part.spec.model.uri for part in itself.parts] == ["hf://org/sql-lora"], "one download, whatever it is for"
    (only,) = service(SQL, uri=SQL["uri"]).parts
    assert service(SQL, uri=SQL["uri"]).spec.model.called(only.spec.model) == "the model"
    plain = service()
    assert plain.parts == (plain,)


def test_a_group_has_no_adapter_that_each_pod_would_download_again() -> None:
    fields = {"parallelism": {"pipeline": 2}, "device": "cuda"}
    spec = {"model": {"uri": "file:///m", "adapters": [SQL]}, "engine": {**engine(Runtime.VLLM), **fields}}
    body = {"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": spec}
    with pytest.raises(InvalidService, match=r"model\.cache\.mode None is not available"):
        InferenceService.parse(body)
