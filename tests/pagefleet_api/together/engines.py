"""Fields of an engine that do not go together."""

from collections.abc import Iterator
from typing import Any

from pagefleet_api.knobs import EXAMPLES, INSTEAD, Knob, fields
from pagefleet_api.runtime_rules import PARTS_WITHOUT_VALUE
from pagefleet_api.runtimes import TRAITS, Runtime
from tests.pagefleet_api.together.case import ON_SGLANG, ON_VLLM, Case


def _engine(words: str, field: str, **engine: Any) -> Case:
    return Case({"engine": engine}, "spec.engine", field, words)


def _knobs() -> Iterator[Case]:
    """For each field that some engine lacks, the one of them that has most of the others."""
    for knob in Knob:
        lacking = [each for each in Runtime if knob not in TRAITS[each].knobs]
        runtime = max(lacking, key=lambda each: len(TRAITS[each].knobs))
        least: dict[str, Any] = {"runtime": runtime.value, "device": "cuda"}
        least |= {} if TRAITS[runtime].image is None else {"image": "v"}
        least |= {"custom": {"port": 8080}} if runtime is Runtime.CUSTOM else {}
        value = "" if knob in PARTS_WITHOUT_VALUE else f" {EXAMPLES[knob]}"
        words = f"engine.{knob}{value} is not available with engine.runtime {runtime}; {INSTEAD[knob]}"
        yield _engine(words, knob.value, **least, **fields(knob))


ENGINES = (
    _engine(
        "engine.kvCache.size is required when engine.device is cpu, for example 512Mi", "kvCache.size", device="cpu"
    ),
    _engine(
        "engine.kvCache.hostOffload 2Gi is for a cache on a GPU, not for engine.device cpu; use engine.kvCache.size "
        "there",
        "kvCache.hostOffload",
        **{**ON_VLLM, "device": "cpu", "kvCache": {"size": "1Gi", "hostOffload": "2Gi"}},
    ),
    _engine(
        "engine.dtype float16 is not available with engine.runtime pagefleet; use auto or bfloat16 or float32",
        "dtype",
        dtype="float16",
    ),
    _engine(
        "engine.device cpu is not available with engine.runtime sglang; use cuda or auto",
        "device",
        **{**ON_SGLANG, "device": "cpu"},
    ),
    _engine(
        "engine.parallelism.pipeline 3 is not available with engine.runtime tgi; use engine.parallelism.tensor on the "
        "GPUs of one node, or engine.runtime vllm or sglang",
        "parallelism.pipeline",
        **{**ON_VLLM, "runtime": "tgi", "parallelism": {"pipeline": 3}},
    ),
    _engine(
        "engine.device paced is not available with engine.runtime vllm; use engine.runtime pagefleet",
        "device",
        **{**ON_VLLM, "device": "paced"},
    ),
    _engine(
        "engine.image is required with engine.runtime tgi, as no image comes with Pagefleet for it; for example "
        f"{TRAITS[Runtime.TGI].image}",
        "image",
        runtime="tgi",
    ),
    _engine(
        "engine.custom is required with engine.runtime custom: it says where the engine listens; for example "
        "{port: 8000}",
        "custom",
        runtime="custom",
        image="v",
    ),
    _engine(
        "engine.custom is for engine.runtime custom, not for engine.runtime vllm; leave it out, or set engine.runtime: "
        "custom",
        "custom",
        **ON_VLLM,
        custom={},
    ),
    _engine(
        "engine.extraArgs must not have --port=9: the operator gives that flag; use model.servedName and the fields of "
        "engine",
        "extraArgs",
        **ON_VLLM,
        extraArgs=["--fine", "--port=9"],
    ),
    _engine(
        "engine.speculative.method draft is not available with engine.runtime tgi; use method ngram, or engine.runtime "
        "vllm or sglang",
        "speculative.method",
        **{**ON_VLLM, "runtime": "tgi", "speculative": {"method": "draft"}},
    )._replace(
        spec={
            "engine": {**ON_VLLM, "runtime": "tgi", "speculative": {"method": "draft"}},
            "model": {"uri": "file:///m", "draft": {"uri": "hf://o/s"}},
        }
    ),
    _engine(
        "engine.speculative.method ngram is not available with engine.parallelism.pipeline 2: no engine guesses for a "
        "model that is spread over pods; leave one of them out",
        "speculative.method",
        **ON_VLLM,
        parallelism={"pipeline": 2},
        speculative={"method": "ngram"},
    ),
    _engine(
        "engine.speculative.method ngram is not available with engine.runtime sglang and engine.kvCache.blockSize 64, "
        "as it checks several guesses for one place at once; leave blockSize out",
        "speculative.method",
        **ON_SGLANG,
        kvCache={"blockSize": 64},
        speculative={"method": "ngram"},
    ),
    _engine(
        "engine.scheduling.policy fair is not available with engine.runtime sglang; use fcfs or priority, or "
        "engine.runtime pagefleet",
        "scheduling.policy",
        **ON_SGLANG,
        scheduling={"policy": "fair"},
    ),
    _engine(
        "engine.kvCache.hostOffload 3Gi: sglang takes whole gigabytes for each of the 8 GPUs of parallelism.tensor; "
        "give at least 8G",
        "kvCache.hostOffload",
        **ON_SGLANG,
        parallelism={"tensor": 8},
        kvCache={"hostOffload": "3Gi"},
    ),
    Case(
        {"engine": {**ON_SGLANG, "kvCache": {"diskOffload": "200Gi"}}},
        "spec.engine.kvCache",
        "diskOffload",
        "engine.kvCache.diskOffload 200Gi needs engine.kvCache.hostOffload: blocks reach the disk through the pod's "
        "memory; with engine.runtime sglang give hostOffload too, for example 32Gi; with any other leave diskOffload "
        "out",
    ),
    *(
        Case({"engine": {**ON_VLLM, "speculative": guesses}}, "spec.engine.speculative", field, words)
        for guesses, field, words in (
            (
                {"method": "ngram", "lookupMin": 5, "lookupMax": 4},
                "lookupMin",
                "lookupMin 5 must not be above lookupMax 4; lower lookupMin or raise lookupMax",
            ),
            (
                {"tokens": 3},
                "method",
                "engine.speculative.tokens, lookupMax and lookupMin say how to guess, and engine.speculative.method is "
                "none; set method, or leave them out",
            ),
        )
    ),
    Case(
        {
            "engine": {**ON_VLLM, "speculative": {"method": "draft", "lookupMax": 3}},
            "model": {"uri": "file:///m", "draft": {"uri": "hf://o/s"}},
        },
        "spec.engine.speculative",
        "method",
        "engine.speculative.lookupMax and lookupMin say what is looked up, and engine.speculative.method is draft; "
        "leave them out, or set method: ngram",
    ),
    *_knobs(),
)
