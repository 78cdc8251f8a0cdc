"""What the model's fields may say together; the API server's rules say the same (tests with a real one)."""

from typing import Any

import pytest
from pydantic import ValidationError

from pagefleet_api.model_source import ModelSource


def _with(adapter: str, *, revision: str | None = None, **more: Any) -> dict[str, Any]:
    """A model in the image with an adapter of that URI."""
    fields = {"secretRef" if name == "secret" else name: value for name, value in more.items()}
    version = {} if revision is None else {"revision": revision}
    return {"uri": "file:///m", **fields, "adapters": [{"name": "sql", "uri": adapter, **version}]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"uri": "ftp://host/x"}, "is no model URI: give hf://ORG/NAME"),
    ({"uri": "hf://org/name/../x"}, "without .. in the path"),
    ({"uri": "s3://bucket/name", "revision": "v1"}, "model.revision v1 is for hf:// alone"),
    ({"uri": "pkg://name", "secretRef": {"name": "s"}}, "model.secretRef s is for models that are downloaded"),
    ({"uri": "pvc://claim", "cache": {"mode": "PVC", "pvc": "a"}}, "model.cache.mode PVC is for models"),
    ({"uri": "hf://org/name", "cache": {"mode": "PVC"}}, "model.cache.pvc is required with"),
    ({"uri": "hf://org/name", "cache": {"pvc": "a"}}, "model.cache.pvc a is for model.cache.mode PVC"),
    ({"uri": "hf://org/name", "cache": {"limit": "1Gi"}}, "model.cache.limit 1Gi is for model.cache.mode PVC"),
    (
        {"uri": "hf://org/name", "cache": {"prefetch": False}},
        "model.cache.prefetch false is for model.cache.mode PVC",
    ),
    (
        {"uri": "hf://org/name", "cache": {"mode": "PVC", "pvc": "a", "limit": "1Gi", "prefetch": False}},
        "model.cache.prefetch false is not available with model.cache.limit 1Gi",
    ),
    (
        {"uri": "hf://org/name", "cache": {"mode": "PVC", "pvc": "a", "limit": 1}},
        "must be at least 1Mi",
    ),
    (_with("ftp://host/x"), "give a folder as PEFT writes it by hf://ORG/NAME"),
    (_with("pkg://name"), "give a folder as PEFT writes it by hf://ORG/NAME"),
    (_with("oci://r/a:1"), "give a folder as PEFT writes it by hf://ORG/NAME"),
    (_with("hf://o/a/checkpoint-500"), "give a folder as PEFT writes it by hf://ORG/NAME, s3://"),
    (_with("hf://o/a/../b"), "without .. or any of ,=@ in the path"),
    (_with("pvc://claim/a,b=/etc"), "without .. or any of ,=@ in the path"),
    (_with("pvc://claim/a@2"), "without .. or any of ,=@ in the path"),
    (_with("file:///a\vb"), "without .. or any of ,=@ in the path"),
    (_with("https://host/a.gguf?download=1"), "give a folder as PEFT writes it by hf://ORG/NAME"),
    (_with("https://host/a.gguf"), "give a folder as PEFT writes it by hf://ORG/NAME"),
    (_with("s3://b/a", revision="v1"), "model.adapters[sql].revision v1 is for hf:// alone"),
    (_with("pvc://claim/a", secret={"name": "s"}), "model.secretRef s is for models that are downloaded"),
    (_with("file:///a", cache={"mode": "Node"}), "model.cache.mode Node is for models"),
]
"""Specs of a model and the words that refuse them."""


@pytest.mark.parametrize(("model", "words"), REFUSED)
def test_fields_that_do_not_go_together_are_refused_with_the_way_out(model: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        ModelSource.model_validate(model)
    assert words.partition(": ")[2] in str(refusal.value) or words in str(refusal.value)


def test_a_cached_model_of_the_hub_is_read() -> None:
    model = ModelSource.model_validate(
        {
            "uri": "hf://org/Name",
            "revision": "0e9e39f",
            "secretRef": {"name": "hf-token"},
            "cache": {"mode": "PVC", "pvc": "models", "limit": "500Gi"},
        }
    )
    assert model.downloaded
    assert model.key.startswith("name-")
