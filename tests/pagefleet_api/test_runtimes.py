"""Which engine takes which field: what one lacks is refused by name, with the value and a way out."""

from typing import Any

import pytest

from pagefleet_api.knobs import EXAMPLES, INSTEAD, Knob
from pagefleet_api.knobs import fields as fields_with
from pagefleet_api.runtime_rules import cel
from pagefleet_api.runtimes import OWNED_FLAGS, TRAITS, Runtime, place
from pagefleet_api.service import InferenceService, InvalidService


def engine(runtime: Runtime, **fields: Any) -> dict[str, Any]:
    """The least that a runtime needs, and these fields."""
    image = {} if TRAITS[runtime].image is None else {"image": "engine:1"}
    custom = {"custom": {"port": 8080}} if runtime is Runtime.CUSTOM else {}
    return {"runtime": runtime.value, **image, **custom, **fields}


def with_knob(runtime: Runtime, knob: Knob) -> dict[str, Any]:
    return engine(runtime, **fields_with(knob))


def parsed(fields: dict[str, Any], uri: str = "file:///m") -> InferenceService:
    meta = {"namespace": "n", "name": "s", "uid": "u"}
    return InferenceService.parse({"metadata": meta, "spec": {"model": {"uri": uri}, "engine": fields}})


@pytest.mark.parametrize("runtime", Runtime)
@pytest.mark.parametrize("knob", Knob)
def test_a_field_is_taken_or_refused_as_the_table_says(runtime: Runtime, knob: Knob) -> None:
    fields = with_knob(runtime, knob)
    if knob in TRAITS[runtime].knobs:
        parsed(fields)
        return
    with pytest.raises(InvalidService) as refusal:
        parsed(fields)
    words = str(refusal.value)
    assert f"engine.{knob}" in words
    assert f"not available with engine.runtime {runtime}; {INSTEAD[knob]}" in words
    assert isinstance(EXAMPLES[knob], dict) or f" {EXAMPLES[knob]} " in words


CLASHES = (
    (engine(Runtime.PAGEFLEET, device="cpu"), "engine.kvCache.size is required when engine.device is cpu"),
    ({"runtime": "vllm"}, "engine.image is required with engine.runtime vllm, as no image comes with Pagefleet"),
    (
        engine(Runtime.TGI, dtype="float32"),
        "float32 is not available with engine.runtime tgi; use auto",
    ),
    (engine(Runtime.PAGEFLEET, dtype="float16"), "engine.dtype float16 is not available"),
    (
        engine(Runtime.SGLANG, device="cpu"),
        "cpu is not available with engine.runtime sglang; use cuda",
    ),
    (
        engine(Runtime.VLLM, device="cpu", kvCache={"size": "1Gi", "hostOffload": "2Gi"}),
        "engine.kvCache.hostOffload 2Gi is for a cache on a GPU",
    ),
    (engine(Runtime.VLLM, device="paced"), "engine.device paced is not available with engine.runtime vllm"),
    ({"runtime": "custom", "image": "e"}, "engine.custom is required"),
    (
        engine(Runtime.TGI, parallelism={"pipeline": 3}),
        "pipeline 3 is not available with engine.runtime tgi; use engine.parallelism.tensor on the GPUs of one node",
    ),
    (engine(Runtime.VLLM, custom={}), "engine.custom is for engine.runtime custom, not for engine.runtime vllm"),
    (
        engine(Runtime.VLLM, extraArgs=["--port=9"]),
        "engine.extraArgs must not have --port=9: the operator gives",
    ),
    (engine(Runtime.PAGEFLEET, extraArgs=["--model", "x"]), "use model.servedName"),
    (
        engine(Runtime.VLLM, speculative={"method": "ngram", "lookupMin": 5, "lookupMax": 4}),
        "lower lookupMin or raise lookupMax",
    ),
    (engine(Runtime.VLLM, speculative={"tokens": 3}), "engine.speculative.method is none; set method"),
    (
        engine(Runtime.SGLANG, speculative={"method": "ngram"}, parallelism={"pipeline": 2}),
        "engine.speculative.method ngram is not available with engine.parallelism.pipeline 2: no engine",
    ),
    (
        engine(Runtime.VLLM, speculative={"method": "ngram"}, parallelism={"pipeline": 2}),
        "engine.speculative.method ngram is not available with engine.parallelism.pipeline 2: no engine",
    ),
    (
        engine(Runtime.SGLANG, speculative={"method": "ngram"}, kvCache={"blockSize": 64}),
        "engine.kvCache.blockSize 64",
    ),
    (
        engine(Runtime.VLLM, scheduling={"policy": "sjf"}),
        "sjf is not available with engine.runtime vllm; use fcfs or priority, or engine.runtime pagefleet",
    ),
    (engine(Runtime.SGLANG, scheduling={"policy": "fair"}), "engine.scheduling.policy fair is not available with"),
    (engine(Runtime.TGI, scheduling={"policy": "sjf"}), "engine.scheduling.policy sjf is not available with"),
)
MALFORMED = (
    ({**engine(Runtime.CUSTOM), "custom": {"port": 0}}, "engine.custom.port"),
    ({**engine(Runtime.CUSTOM), "custom": {"healthPath": "health"}}, "engine.custom.healthPath"),
    (engine(Runtime.VLLM, kvCache={"memoryUtilization": "1.5"}), "at least 0.05 and at most 1"),
    (engine(Runtime.VLLM, kvCache={"blockSize": 7}), "engine.kvCache.blockSize"),
    (engine(Runtime.VLLM, quantization="FP 8"), "engine.quantization"),
    ({"runtime": "vlm"}, "'vllm'"),
    (engine(Runtime.PAGEFLEET, scheduling={"policy": "lifo"}), "'fcfs', 'priority', 'sjf' or 'fair'"),
    (engine(Runtime.VLLM, speculative={"method": "eagle"}), "'ngram'"),
    (engine(Runtime.VLLM, speculative={"method": "ngram", "tokens": 0}), "engine.speculative.tokens"),
)


@pytest.mark.parametrize(("fields", "says"), CLASHES + MALFORMED)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidService) as refusal:
        parsed(fields)
    assert says in str(refusal.value)


@pytest.mark.parametrize("runtime", Runtime)
def test_no_method_of_quantization_or_guessing_is_what_every_engine_takes(runtime: Runtime) -> None:
    none = engine(runtime, quantization="none", speculative={"method": "none"})
    assert parsed(none).spec.engine.quantization is None
    assert not parsed(none).spec.engine.speculative.guesses


@pytest.mark.parametrize("runtime", Runtime)
def test_by_arrival_is_what_every_engine_takes(runtime: Runtime) -> None:
    assert parsed(engine(runtime, scheduling={"policy": "fcfs"})).spec.engine.scheduling.policy == "fcfs"


def test_a_custom_engine_has_its_own_flags() -> None:
    parsed(engine(Runtime.CUSTOM, extraArgs=["--port=9", "--model", "x"]))


def test_a_model_in_a_python_package_is_for_our_engine_alone() -> None:
    parsed(engine(Runtime.PAGEFLEET), "pkg://m")
    with pytest.raises(InvalidService, match=r"model\.uri pkg://m: pkg:// is for engine\.runtime pagefleet, not"):
        parsed(engine(Runtime.VLLM), "pkg://m")


NAMED: dict[str, Any] = {"model": {"uri": "file:///m", "servedName": "llama:8b"}, "engine": engine(Runtime.SGLANG)}
MISREAD = "model.servedName llama:8b must not have a colon with engine.runtime sglang, where one stands between"


def test_a_name_that_an_engine_reads_as_two_is_refused() -> None:
    meta = {"namespace": "n", "name": "s", "uid": "u"}
    with pytest.raises(InvalidService, match=MISREAD):
        InferenceService.parse({"metadata": meta, "spec": NAMED})
    for fine in ({**NAMED, "engine": engine(Runtime.VLLM)}, {**NAMED, "model": {"uri": "file:///m"}}):
        InferenceService.parse({"metadata": meta, "spec": fine})


def test_the_api_server_has_a_rule_for_everything_that_some_engine_lacks() -> None:
    messages = [rule.message for rule in cel()]
    for knob in Knob:
        lacking = any(knob not in traits.knobs for traits in TRAITS.values())
        assert lacking == any(message.startswith(f"engine.{knob} is") for message in messages), knob
    assert set(INSTEAD) == set(Knob)
    assert all(flag.startswith("-") for flag in OWNED_FLAGS)


def test_every_engine_is_asked_where_it_answers() -> None:
    assert place(Runtime.VLLM).path == "/metrics"
    assert place(Runtime.TENSORRT_LLM).path == "/prometheus/metrics"
    assert place(Runtime.SGLANG).port == 8000
