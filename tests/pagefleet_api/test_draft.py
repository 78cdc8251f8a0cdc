"""A draft of a model: where it goes with how is guessed, and what it comes from."""

from typing import Any

import pytest

from pagefleet_api.model_source import CacheMode
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService, InvalidService
from tests.pagefleet_api.test_runtimes import engine

SMALL = {"uri": "hf://org/small", "revision": "v1"}
GUESSING = {"speculative": {"method": "draft", "tokens": 3}}
TAKES = (Runtime.VLLM, Runtime.SGLANG)


def spec(runtime: Runtime, draft: dict[str, Any] | None = SMALL, /, **more: Any) -> dict[str, Any]:
    fields, model = more.get("engine", GUESSING), {"uri": "file:///m", **more.get("model", {})}
    return {"model": model if draft is None else {**model, "draft": draft}, "engine": engine(runtime, **fields)}


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    *(
        (spec(runtime), f"engine.speculative.method draft is not available with engine.runtime {runtime}; ")
        for runtime in Runtime
        if runtime not in TAKES
    ),
    (spec(Runtime.VLLM, None), "engine.speculative.method draft needs model.draft: a smaller model"),
    (
        spec(Runtime.VLLM, engine={}),
        "model.draft hf://org/small is for engine.speculative.method draft, not for method none",
    ),
    (
        spec(Runtime.VLLM, engine={"speculative": {"method": "ngram"}}),
        "model.draft hf://org/small is for engine.speculative.method draft, not for method ngram",
    ),
    (spec(Runtime.VLLM, {"uri": "oci://r/small"}), "give a folder as Hugging Face lays it out by hf://ORG/NAME"),
    (spec(Runtime.VLLM, {"uri": "hf://org/small/a.gguf"}), "give a folder as Hugging Face lays it out"),
    (spec(Runtime.VLLM, {"uri": 'pvc://c/a"b'}), "give a folder as Hugging Face lays it out"),
    (spec(Runtime.VLLM, {"uri": "https://host/a.gguf?download=1"}), "give a folder as Hugging Face lays it out"),
    (spec(Runtime.VLLM, {"uri": "small"}), "give a folder as Hugging Face lays it out"),
    (spec(Runtime.VLLM, {"uri": "s3://b/small", "revision": "v1"}), "model.draft.revision v1 is for hf:// alone"),
    (
        spec(Runtime.VLLM, engine={"speculative": {"method": "draft", "lookupMax": 3}}),
        "engine.speculative.lookupMax and lookupMin say what is looked up",
    ),
    (
        spec(Runtime.SGLANG, engine={**GUESSING, "parallelism": {"pipeline": 2}}),
        "engine.speculative.method draft is not available with engine.parallelism.pipeline 2: no engine guesses",
    ),
    (
        spec(Runtime.SGLANG, model={"adapters": [{"name": "sql", "uri": "hf://org/sql"}]}),
        "engine.speculative.method draft is not available with engine.runtime sglang and model.adapters",
    ),
)
TAKEN = (
    *(spec(runtime) for runtime in TAKES),
    spec(Runtime.SGLANG, engine={**GUESSING, "kvCache": {"blockSize": 64}}),
    spec(Runtime.VLLM, {"uri": "pvc://c/small"}, model={"adapters": [{"name": "sql", "uri": "hf://org/sql"}]}),
    spec(Runtime.VLLM, model={"cache": {"mode": "PVC", "pvc": "models"}, "secretRef": {"name": "hub"}}),
)


def parsed(fields: dict[str, Any]) -> InferenceService:
    return InferenceService.parse({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": fields})


@pytest.mark.parametrize(("fields", "says"), REFUSED)
def test_a_draft_that_does_not_go_with_the_rest_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        parsed(fields)
    assert says in str(refusal.value)


@pytest.mark.parametrize("fields", TAKEN)
def test_a_draft_guesses_for_engines_that_let_one(fields: dict[str, Any]) -> None:
    assert parsed(fields).spec.engine.speculative.guesses


def test_a_draft_comes_as_its_model_does_by_itself() -> None:
    cache = {"mode": "PVC", "pvc": "models"}
    found = parsed(spec(Runtime.VLLM, model={"cache": cache, "adapters": [{"name": "sql", "uri": "hf://org/sql"}]}))
    model, adapter, draft = found.spec.model.sources
    assert (draft.uri, draft.revision, draft.cache.mode, draft.draft) == ("hf://org/small", "v1", CacheMode.PVC, None)
    assert (model.cache.mode, model.draft) == (CacheMode.NONE, None), "it is in the image"
    assert [found.spec.model.called(each) for each in (model, adapter, draft)] == [
        "the model",
        "adapter sql",
        "the draft",
    ]
    assert [part.spec.model.uri for part in found.parts] == ["file:///m", "hf://org/sql", "hf://org/small"]
