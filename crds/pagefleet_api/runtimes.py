"""What each engine can do and how it tells its load: one table for validation, rendering, sampling and docs.

Metric names from each engine's documentation and source; where one was renamed, both names are here, the newest first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pagefleet_api import labels
from pagefleet_api.knobs import Knob
from pagefleet_api.start_phase import StartPhase


class Runtime(StrEnum):
    """Engines that the operator can run."""

    PAGEFLEET = "pagefleet"
    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    TENSORRT_LLM = "tensorrt-llm"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Series:
    """Series of one name that have these labels; their number is their value, or is in the label `told_in`.

    A label without a value is one that may not be there.
    """

    name: str
    labels: Mapping[str, str] | None = None
    told_in: str | None = None


Sum = tuple[Series, ...]
"""The first must be there; the others are added where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricNames:
    """What an engine calls its numbers, each with its names from the newest to the oldest; empty: it has none.

    running, waiting: requests. kv_usage: share of the KV cache in use, 0..1.
    block_size: tokens. blocks: of the whole KV cache.
    ttft, itl: histogram families, seconds. ended, failed: counters of requests. weights: seconds that these took.
    born_by_use: its series begin with the first request; without any of running, waiting and ended there was none yet.
    """

    running: tuple[Sum, ...] = ()
    waiting: tuple[Sum, ...] = ()
    kv_usage: tuple[Sum, ...] = ()
    block_size: tuple[Sum, ...] = ()
    blocks: tuple[Sum, ...] = ()
    ttft: tuple[str, ...] = ()
    itl: tuple[str, ...] = ()
    ended: tuple[Sum, ...] = ()
    failed: tuple[Sum, ...] = ()
    weights: tuple[Sum, ...] = ()
    born_by_use: bool = False

    def load_prefixes(self) -> tuple[str, ...]:
        """What every line begins with that tells the load."""
        used = self.ended if self.born_by_use else ()
        return _named(self.running, self.waiting, self.kv_usage, self.block_size, self.blocks, used)

    def timing_prefixes(self) -> tuple[str, ...]:
        """What every line begins with that tells how answers went."""
        return (*self.ttft, *self.itl, *_named(self.ended, self.failed, self.weights))


def _named(*sums: tuple[Sum, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(series.name for choices in sums for choice in choices for series in choice))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One engine.

    pipelines: whether pods on several machines can share one copy of a model.
    knobs: fields that it takes. dtypes: values of engine.dtype. on_cpu: whether it also runs without a GPU.
    health_path: answers 200 when it can serve. metrics_path: where its numbers are.
    image: an example for messages; None where the chart has a default image.
    """

    knobs: frozenset[Knob]
    dtypes: tuple[str, ...] = ("auto", "float16", "bfloat16", "float32")
    on_cpu: bool = False
    pipelines: bool = False
    health_path: str = "/health"
    metrics_path: str = "/metrics"
    names: MetricNames = MetricNames()
    image: str | None = None


def _sum(*names: str, **chosen: str) -> Sum:
    return tuple(Series(name, chosen or None) for name in names)


def _label(name: str, label: str) -> Sum:
    return (Series(name, told_in=label),)


_PAGEFLEET = MetricNames(
    running=(_sum("pagefleet_requests_running"),),
    waiting=(_sum("pagefleet_requests_waiting"),),
    kv_usage=(_sum("pagefleet_kv_cache_usage_ratio"),),
    block_size=(_label("pagefleet_cache_config_info", "block_size"),),
    blocks=(_label("pagefleet_cache_config_info", "num_blocks"),),
    ttft=("pagefleet_time_to_first_token_seconds",),
    itl=("pagefleet_inter_token_latency_seconds",),
    ended=(_sum("pagefleet_requests_total"),),
    failed=(_sum("pagefleet_requests_total", outcome="error"),),
    weights=(_sum("pagefleet_startup_phase_seconds", phase=StartPhase.WEIGHTS),),
)
_VLLM = MetricNames(
    running=(_sum("vllm:num_requests_running"),),
    waiting=(_sum("vllm:num_requests_waiting"),),
    kv_usage=(_sum("vllm:kv_cache_usage_perc"), _sum("vllm:gpu_cache_usage_perc")),
    block_size=(_label("vllm:cache_config_info", "block_size"),),
    blocks=(_label("vllm:cache_config_info", "num_gpu_blocks"),),
    ttft=("vllm:time_to_first_token_seconds",),
    itl=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    ended=(_sum("vllm:request_success_total"),),
    failed=(_sum("vllm:request_success_total", finished_reason="error"),),
)
_SGLANG = MetricNames(
    # by priority there is a series for each one too
    running=(_sum("sglang:num_running_reqs", priority=""),),
    # a request with a grammar waits in a queue of its own until that is compiled
    waiting=(_sum("sglang:num_queue_reqs", "sglang:num_grammar_queue_reqs", priority=""),),
    kv_usage=(_sum("sglang:token_usage"),),
    block_size=(_sum("sglang:page_size"), _label("sglang:cache_config_info", "page_size")),
    blocks=(_sum("sglang:num_pages"), _label("sglang:cache_config_info", "num_pages")),
    ttft=("sglang:time_to_first_token_seconds",),
    itl=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    ended=(_sum("sglang:num_requests_total"),),
)
_TGI = MetricNames(
    running=(_sum("tgi_batch_current_size"),),
    waiting=(_sum("tgi_queue_size"),),
    itl=("tgi_request_mean_time_per_token_duration",),
    ended=(_sum("tgi_request_success", "tgi_request_failure"),),
    failed=(_sum("tgi_request_failure"),),
    born_by_use=True,
)
_TENSORRT_LLM = MetricNames(
    running=(_sum("trtllm_num_requests_running"),),
    waiting=(_sum("trtllm_num_requests_waiting"),),
    kv_usage=(_sum("trtllm_kv_cache_utilization"), _sum("kv_cache_utilization")),
    block_size=(_sum("trtllm_kv_cache_tokens_per_block"),),
    blocks=(_sum("trtllm_kv_cache_max_blocks"),),
    ttft=("trtllm_time_to_first_token_seconds", "time_to_first_token_seconds"),
    itl=("trtllm_time_per_output_token_seconds", "time_per_output_token_seconds"),
    ended=(_sum("trtllm_request_success_total", "trtllm_request_error_total"), _sum("request_success_total")),
    failed=(_sum("trtllm_request_error_total"),),
)

TRAITS: Mapping[Runtime, Traits] = {
    Runtime.PAGEFLEET: Traits(
        knobs=frozenset(Knob)
        - {Knob.QUANTIZATION, Knob.KV_DTYPE, Knob.KV_BLOCK_SIZE, Knob.KV_HOST, Knob.KV_DISK}
        - {Knob.SPECULATIVE, Knob.LOOKUP_MAX, Knob.LOOKUP_MIN},
        dtypes=("auto", "bfloat16", "float32"),
        on_cpu=True,
        health_path="/readyz",
        names=_PAGEFLEET,
    ),
    Runtime.VLLM: Traits(
        knobs=frozenset(Knob) - {Knob.API_KEYS, Knob.KV_DISK},
        on_cpu=True,
        pipelines=True,
        names=_VLLM,
        image="vllm/vllm-openai:v0.18.0",
    ),
    Runtime.SGLANG: Traits(
        knobs=frozenset(Knob) - {Knob.KV_SIZE, Knob.API_KEYS, Knob.LOOKUP_MAX, Knob.LOOKUP_MIN},
        pipelines=True,
        names=_SGLANG,
        image="lmsysorg/sglang:v0.5.17",
    ),
    Runtime.TGI: Traits(
        knobs=frozenset(
            {
                Knob.DTYPE,
                Knob.QUANTIZATION,
                Knob.MAX_MODEL_LEN,
                Knob.MAX_NUM_BATCHED_TOKENS,
                Knob.KV_MEMORY,
                Knob.KV_DTYPE,
                Knob.SPECULATIVE,
            }
        ),
        dtypes=("auto", "float16", "bfloat16"),
        names=_TGI,
        image="ghcr.io/huggingface/text-generation-inference:3.3.5",
    ),
    Runtime.TENSORRT_LLM: Traits(
        knobs=frozenset(
            {
                Knob.DTYPE,
                Knob.MAX_MODEL_LEN,
                Knob.MAX_NUM_SEQS,
                Knob.MAX_NUM_BATCHED_TOKENS,
                Knob.KV_DTYPE,
                Knob.KV_BLOCK_SIZE,
                Knob.KV_HOST,
                Knob.SPECULATIVE,
                Knob.LOOKUP_MAX,
                Knob.CHAT_TEMPLATE,
            }
        ),
        metrics_path="/prometheus/metrics",
        names=_TENSORRT_LLM,
        image="nvcr.io/nvidia/tensorrt-llm/release:1.3.0",
    ),
    Runtime.CUSTOM: Traits(
        knobs=frozenset(), dtypes=("auto",), on_cpu=True, pipelines=True, image="registry.example/engine:1.0"
    ),
}

UNTOLD: Mapping[str, frozenset[Runtime]] = {
    "KVCacheUsage": frozenset({Runtime.TGI}),
    "KVCacheDemand": frozenset(Runtime) - {Runtime.PAGEFLEET},
    "TimeToFirstToken": frozenset({Runtime.TGI, Runtime.CUSTOM}),
}
"""Metrics of an autoscaler, and the engines that never tell what they need."""

OWNED_FLAGS = (
    "--host", "--hostname", "--port", "-p", "--model", "--model-path", "--model-id", "--served-model-name",
    "--admin-port", "--require-api-key", "--enable-metrics",
)  # fmt: skip
"""Arguments that the operator gives itself, or that would cut it off from the engine; not in engine.extraArgs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pod's numbers are, and what they are called there."""

    port: int
    path: str
    names: MetricNames


def place(runtime: Runtime) -> Place:
    """Of an engine whose port the operator decides."""
    traits = TRAITS[runtime]
    return Place(port=labels.ENGINE_PORT, path=traits.metrics_path, names=traits.names)


def custom_place(*, port: int, path: str, running: str, waiting: str, kv_usage: str | None) -> Place:
    """Of an engine that its user describes."""
    names = MetricNames(
        running=(_sum(running),), waiting=(_sum(waiting),), kv_usage=(_sum(kv_usage),) if kv_usage else ()
    )
    return Place(port=port, path=path, names=names)
