"""Single values that are refused: with the field, the value and the way out, by the parser and by the API server."""

from typing import Any

import pytest

from pagefleet_api.service import InferenceService, InvalidService, Spec
from pagefleet_api.structural import structural
from tests.pagefleet_api.test_service import body, nodes

_NIGHT = {"name": "night", "start": "22:00", "end": "06:00", "minReplicas": 1}
_MODEL = {"uri": "hf://org/name"}
_LORA = {"name": "sql", "uri": "hf://org/sql"}
_CUSTOM = {"runtime": "custom", "image": "i"}
_GUESSED = {"engine": {"runtime": "vllm", "image": "v", "speculative": {"method": "draft"}}}


def _scaling(**fields: Any) -> dict[str, Any]:
    return {"autoscaling": {"maxReplicas": 3, **fields}}


def _watching(kind: str, **target: str) -> dict[str, Any]:
    return _scaling(metrics=[{"type": kind, "target": target}])


def _cpu(size: Any) -> dict[str, Any]:
    return {"engine": {"device": "cpu", "kvCache": {"size": size}}}


NO_QUANTITY: tuple[tuple[dict[str, Any], str, str, str], ...] = (
    (_cpu("256Megs"), "engine.kvCache.size", "256Megs", "must be a quantity such as 512Mi"),
    (_cpu("256Mi\n"), "engine.kvCache.size", "256Mi\\n", "must be a quantity such as 512Mi"),
    (_cpu("1e100"), "engine.kvCache.size", "1e100", "must be written with at most 20 digits on each side of"),
    (_cpu(f"{'1' * 21}"), "engine.kvCache.size", "1" * 21, "must be written with at most 20 digits on each side of"),
    (_cpu("-1e100"), "engine.kvCache.size", "-1e100", "must be at least 1Mi and at most 1Pi"),
    (_cpu(""), "engine.kvCache.size", "", "must be a quantity such as 512Mi"),
    (
        _watching("WaitingRequests", averageValue="four"),
        "autoscaling.metrics[0].target.averageValue",
        "four",
        "must be a quantity such as 4",
    ),
    (
        _scaling(missingMetrics={"minCoverage": "50%"}),
        "autoscaling.missingMetrics.minCoverage",
        "50%",
        "must be a quantity such as 0.5",
    ),
    *(
        ({"resources": {"limits": {"memory": value}}}, "resources.limits[memory]", value, words)
        for value, words in (
            ("-1", "must be at least 0"),
            ("1e100", "must be written with at most 20 digits on each side of the point and 2 in the exponent"),
            ("2Gigs", "must be a quantity such as '512Mi', '2Gi' or '0.5'"),
        )
    ),
)
"""What a spec has beside a model, the field as the API server names it, the value, and the words of both."""

WRONG: tuple[tuple[dict[str, Any], str, str, str], ...] = (
    (_cpu("1Ki"), "engine.kvCache.size", "1Ki", "must be at least 1Mi and at most 1Pi"),
    (_cpu(5), "engine.kvCache.size", "5", "must be at least 1Mi and at most 1Pi"),
    ({"model": {**_MODEL, "revision": "-x"}}, "model.revision", "-x", "must be letters, digits, ., _, / and -,"),
    (
        {"model": {**_MODEL, "secretRef": {"name": "My_Secret"}}},
        "model.secretRef.name",
        "My_Secret",
        "must be lower-case letters, digits, - and .,",
    ),
    (
        {"model": {**_MODEL, "adapters": [{**_LORA, "name": "a=b"}]}},
        "model.adapters[0].name",
        "a=b",
        "must be letters, digits, ., _ and -, with a letter or digit first, for example sql-v2",
    ),
    (
        {"engine": {"runtime": "vllm", "image": "v", "quantization": "AWQ 4"}},
        "engine.quantization",
        "AWQ 4",
        "must be lower-case letters, digits, _ and -,",
    ),
    (
        {"engine": {**_CUSTOM, "custom": {"healthPath": "health"}}},
        "engine.custom.healthPath",
        "health",
        "must be a path without spaces that begins with /",
    ),
    (
        {"engine": {**_CUSTOM, "custom": {"metrics": {"running": "a-b", "waiting": "w"}}}},
        "engine.custom.metrics.running",
        "a-b",
        "must be letters, digits, _ and :,",
    ),
    (
        {"resources": {"gpu": {"resourceName": "gpu"}}},
        "resources.gpu.resourceName",
        "gpu",
        "must be DOMAIN/NAME as nodes have it, such as nvidia.com/gpu",
    ),
    (
        _scaling(lookahead="soon"),
        "autoscaling.lookahead",
        "soon",
        "must be a duration such as 90s or 1m30s, Auto or None",
    ),
    (
        _watching("TimeToFirstToken", p95="0.5s"),
        "autoscaling.metrics[0].target.p95",
        "0.5s",
        "must be a duration such as 500ms or 1m30s",
    ),
    *(
        (_scaling(schedules=[{**_NIGHT, field: value}]), f"autoscaling.schedules[0].{field}", value, words)
        for field, value, words in (
            ("name", "Night shift", "must be lower-case letters, digits and -,"),
            ("timezone", "Berlin time", "must be a name of the IANA database such as Europe/Berlin or UTC"),
            ("start", "25:00", "must be a time of day such as 07:30"),
            ("end", "24:30", "must be a time of day such as 07:30, or 24:00"),
        )
    ),
    (
        _scaling(schedules=[{**_NIGHT, "days": ["Monday"]}]),
        "autoscaling.schedules[0].days[0]",
        "Monday",
        "must be a day such as Sat, or days such as Mon-Fri",
    ),
    *(
        ({"rollout": {"maxSurge": value}}, "rollout.maxSurge", str(value), "must be a number of pods up to 9999,")
        for value in ("lots", -1, 10_000)
    ),
)
"""The same, of other values."""

NO_URI: tuple[tuple[dict[str, Any], str, str, str], ...] = (
    ({"model": {"uri": "nonsense/x"}}, "model.uri", "nonsense/x", "is no model URI: give hf://ORG/NAME"),
    ({"model": {"uri": "hf://o/n\n"}}, "model.uri", "hf://o/n\\n", "is no model URI: give hf://ORG/NAME"),
    (
        {"model": {**_MODEL, "adapters": [{**_LORA, "uri": "ftp://x/y"}]}},
        "model.adapters[0].uri",
        "ftp://x/y",
        "is no adapter's URI: give a folder as PEFT writes it",
    ),
    (
        {"model": {**_MODEL, "draft": {"uri": "ftp://x/y"}}, **_GUESSED},
        "model.draft.uri",
        "ftp://x/y",
        "is no draft's URI: give a folder as Hugging Face lays it out",
    ),
)
"""The same, of models: both say the value first, and what it can be afterwards."""


def _refusal(spec: dict[str, Any]) -> str:
    with pytest.raises(InvalidService) as refusal:
        InferenceService.parse(body(**spec))
    return str(refusal.value)


@pytest.mark.parametrize(("spec", "field", "value", "words"), [*WRONG, *NO_QUANTITY])
def test_a_value_of_another_form_is_refused_in_words(spec: dict[str, Any], field: str, value: str, words: str) -> None:
    said, at = _refusal(spec), field.replace("[memory]", ".memory")
    assert said.startswith(f"spec.{at}: {words}")
    assert value in said.partition("(given: ")[2]


@pytest.mark.parametrize(("spec", "field", "value", "words"), NO_URI)
def test_what_is_no_models_uri_is_said_before_what_can_be(
    spec: dict[str, Any], field: str, value: str, words: str
) -> None:
    assert f"spec.{field}: '{value}' {words}" in _refusal(spec)


def test_no_field_of_a_spec_is_refused_with_a_regular_expression() -> None:
    assert not [path for path, node in nodes(structural(Spec)) if "pattern" in node]


def test_of_what_is_an_integer_or_a_string_no_name_of_a_type_is_shown_as_the_value() -> None:
    for path, node in nodes(structural(Spec)):
        if "type" not in node or node["type"] == "string":
            for rule in node.get("x-kubernetes-validations", ()):
                assert rule["reason"] == "FieldValueForbidden", path
                assert "self" in rule["messageExpression"], path
