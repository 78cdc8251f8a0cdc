"""Fields below `spec.engine` that not every engine has, and what is said where one lacks them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Knob(StrEnum):
    """Fields below `spec.engine` that not every engine has."""

    DTYPE = "dtype"
    QUANTIZATION = "quantization"
    MAX_MODEL_LEN = "maxModelLen"
    MAX_NUM_SEQS = "maxNumSeqs"
    MAX_NUM_BATCHED_TOKENS = "maxNumBatchedTokens"
    MAX_QUEUED_REQUESTS = "maxQueuedRequests"
    KV_SIZE = "kvCache.size"
    KV_MEMORY = "kvCache.memoryUtilization"
    KV_DTYPE = "kvCache.dtype"
    KV_BLOCK_SIZE = "kvCache.blockSize"
    KV_HOST = "kvCache.hostOffload"
    KV_DISK = "kvCache.diskOffload"
    SPECULATIVE = "speculative.method"
    LOOKUP_MAX = "speculative.lookupMax"
    LOOKUP_MIN = "speculative.lookupMin"
    SCHEDULING = "scheduling.policy"
    CHAT_TEMPLATE = "chatTemplate"
    API_KEYS = "apiKeysSecretRef"


INSTEAD: Mapping[Knob, str] = {
    Knob.DTYPE: "leave it out",
    Knob.QUANTIZATION: "serve a checkpoint that is quantized already",
    Knob.MAX_MODEL_LEN: "put the engine's own flag into engine.extraArgs",
    Knob.MAX_NUM_SEQS: "put the engine's own flag into engine.extraArgs",
    Knob.MAX_NUM_BATCHED_TOKENS: "put the engine's own flag into engine.extraArgs",
    Knob.MAX_QUEUED_REQUESTS: "put the engine's own limit, if it has one, into engine.extraArgs",
    Knob.KV_SIZE: "use engine.kvCache.memoryUtilization where the engine has it, or engine.extraArgs",
    Knob.KV_MEMORY: "put the engine's own flag into engine.extraArgs; its share may be one of something else",
    Knob.KV_DTYPE: "use engine.dtype, which decides the cache's format too",
    Knob.KV_BLOCK_SIZE: "leave it out: the engine's blocks have a fixed size",
    Knob.KV_HOST: "leave it out, or use engine.runtime vllm, sglang or tensorrt-llm",
    Knob.KV_DISK: "leave it out, or use engine.runtime sglang: others do not bound what they write",
    Knob.SPECULATIVE: "leave it out, or use engine.runtime vllm, sglang, tgi or tensorrt-llm",
    Knob.LOOKUP_MAX: "leave it out: the engine decides how much it looks for",
    Knob.LOOKUP_MIN: "leave it out: the engine decides how much it looks for",
    Knob.SCHEDULING: "leave it out, or use engine.runtime pagefleet, vllm or sglang",
    Knob.CHAT_TEMPLATE: "put the template into the model's folder",
    Knob.API_KEYS: "let the engine be reached through something that checks keys",
}
"""What to do where an engine lacks a field; the end of the refusal."""

EXAMPLES: Mapping[Knob, Any] = {
    Knob.DTYPE: "bfloat16",
    Knob.QUANTIZATION: "fp8",
    Knob.MAX_MODEL_LEN: 4096,
    Knob.MAX_NUM_SEQS: 64,
    Knob.MAX_NUM_BATCHED_TOKENS: 2048,
    Knob.MAX_QUEUED_REQUESTS: 10,
    Knob.KV_SIZE: "1Gi",
    Knob.KV_MEMORY: "0.8",
    Knob.KV_DTYPE: "fp8",
    Knob.KV_BLOCK_SIZE: 32,
    Knob.KV_HOST: "32Gi",
    Knob.KV_DISK: "200Gi",
    Knob.SPECULATIVE: "ngram",
    Knob.LOOKUP_MAX: 4,
    Knob.LOOKUP_MIN: 2,
    Knob.SCHEDULING: "priority",
    Knob.CHAT_TEMPLATE: {"configMapKeyRef": {"name": "c", "key": "k"}},
    Knob.API_KEYS: {"name": "keys"},
}
"""A value of each field that every engine which has it takes; for the documentation and the tests."""

_BESIDE: Mapping[Knob, Mapping[str, Any]] = {
    Knob.KV_DISK: {"hostOffload": "32Gi"},
    Knob.LOOKUP_MAX: {"method": "ngram"},
    Knob.LOOKUP_MIN: {"method": "ngram"},
}
"""What of the same part goes with the example."""


def fields(knob: Knob, *, beside_alone: bool = False) -> dict[str, Any]:
    """Fields below `spec.engine` with the example of one of them; or only what must be beside it."""
    outer, _, inner = knob.partition(".")
    value = EXAMPLES[knob]
    beside = dict(_BESIDE.get(knob, {}))
    if beside_alone:
        return {outer: beside} if beside else {}
    return {outer: {**beside, inner: value} if inner else value}
