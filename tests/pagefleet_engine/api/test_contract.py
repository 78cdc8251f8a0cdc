"""The engine exports what its metric contract names; what it leaves out has its reason here."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_api.metrics import ENGINE, MODEL, Kind, Metric
from pagefleet_api.start_phase import StartPhase
from pagefleet_api.vllm_names import VLLM_ALIASES
from pagefleet_engine.api import exposition
from pagefleet_engine.api.recorder import Recorder
from pagefleet_engine.runner.cuda.memory import Division
from pagefleet_engine.steps import GpuStatus
from tests.pagefleet_engine.api.test_exposition import ADAPTERS, BUSY, STATUS
from tests.pagefleet_engine.api.test_planning import READY

G, C, H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM


class Promised(NamedTuple):
    """A family, its labels beside `model_name`, and where they are listed, the values of the last one."""

    kind: Kind
    labels: tuple[str, ...] = ()
    values: str = ""


CONTRACT: Mapping[str, Promised] = {
    "requests_running": Promised(G),
    "requests_waiting": Promised(G),
    "requests_waiting_by_reason": Promised(G, ("reason",)),
    "kv_cache_usage_ratio": Promised(G),
    "kv_demand_ratio": Promised(G),
    "kv_blocks": Promised(G, ("state",), "free cached used"),
    "kv_blocks_leaked": Promised(G),
    "cache_config_info": Promised(G, ("block_size", "num_blocks", "dtype")),
    "prefill_decode_token_ratio": Promised(G),
    "seconds_since_last_step": Promised(G),
    "memory_bytes": Promised(G, ("kind",), "weights kv activations allocated reserved process"),
    "cuda_graph_padding_ratio": Promised(G),
    "engine_state": Promised(G, ("state",), "starting ready draining failed"),
    "lora_adapters_info": Promised(G, ("adapter", "rank")),
    "prompt_tokens_total": Promised(C),
    "generation_tokens_total": Promised(C),
    "prompt_tokens_by_source_total": Promised(C, ("source",), "computed prefix host disk"),
    "prefix_cache_queries_total": Promised(C),
    "prefix_cache_hits_total": Promised(C),
    "preemptions_total": Promised(C, ("kind",), "recompute swap"),
    "block_allocation_failures_total": Promised(C),
    "requests_total": Promised(C, ("outcome",), "stop length abort error"),
    "rejections_total": Promised(C, ("reason",)),
    "client_disconnects_total": Promised(C),
    "spec_decode_draft_tokens_total": Promised(C),
    "spec_decode_accepted_tokens_total": Promised(C),
    "cuda_graph_steps_total": Promised(C, ("hit",), "true false"),
    "time_to_first_token_seconds": Promised(H),
    "inter_token_latency_seconds": Promised(H),
    "request_queue_seconds": Promised(H),
    "request_prefill_seconds": Promised(H),
    "request_decode_seconds": Promised(H),
    "request_duration_seconds": Promised(H),
    "request_prompt_tokens": Promised(H),
    "request_generation_tokens": Promised(H),
    "step_phase_seconds": Promised(H, ("phase",), "schedule prepare forward sample deliver"),
    "batch_tokens": Promised(H),
    "startup_phase_seconds": Promised(G, ("phase",), "import weights kv warmup graphs"),
}
"""Written down as agreed, by hand; `startup_phase_seconds` stands among the histograms there, and each phase is one
number of a pod, hence a gauge."""

_NO_SPECULATION = "the engine guesses no tokens: a counter that can only be 0 tells nothing"
_NO_TIERS = "blocks that leave the pool are gone: there is no cache in main memory or on a disk"
_ONE_LAUNCH = "a step is one launch, so that its parts cannot be told apart without waiting for each: forward has them"
ABSENT: Mapping[str, str] = {
    "spec_decode_draft_tokens_total": _NO_SPECULATION,
    "spec_decode_accepted_tokens_total": _NO_SPECULATION,
}
ABSENT_VALUES: Mapping[tuple[str, str], str] = {
    ("prompt_tokens_by_source_total", "host"): _NO_TIERS,
    ("prompt_tokens_by_source_total", "disk"): _NO_TIERS,
    ("preemptions_total", "swap"): "who is preempted is computed again, most of it from the prefix cache",
    ("step_phase_seconds", "prepare"): _ONE_LAUNCH,
    ("step_phase_seconds", "sample"): _ONE_LAUNCH,
    ("step_phase_seconds", "deliver"): "the report that tells of a step is its delivery and cannot have its own time",
}
BEYOND: Mapping[str, str] = {
    "request_inference_seconds": "what vllm:request_inference_time_seconds, which is promised, is an alias of",
}
BEYOND_VALUES: Mapping[tuple[str, str], str] = {
    ("startup_phase_seconds", "profile"): "the measured step, in which kernels are compiled (DECISIONS.md)",
}
ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_requests_running": (),
    "num_requests_waiting": (),
    "kv_cache_usage_perc": (),
    "cache_config_info": ("block_size", "num_gpu_blocks"),
    "lora_requests_info": ("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    "prefix_cache_queries_total": (),
    "prefix_cache_hits_total": (),
    "num_preemptions_total": (),
    "prompt_tokens_total": (),
    "generation_tokens_total": (),
    "request_success_total": ("finished_reason",),
    "time_to_first_token_seconds": (),
    "inter_token_latency_seconds": (),
    "e2e_request_latency_seconds": (),
    "request_queue_time_seconds": (),
    "request_prefill_time_seconds": (),
    "request_decode_time_seconds": (),
    "request_inference_time_seconds": (),
    "request_prompt_tokens": (),
    "request_generation_tokens": (),
}
"""vLLM's, with their labels beside `engine` and `model_name`."""

REGISTERED: Mapping[str, Metric] = {metric.name.removeprefix("pagefleet_"): metric for metric in ENGINE}
WHOLE = dataclasses.replace(
    BUSY,
    ready=replace(READY, memory_bytes=Division(4, 3, 2, 1)._asdict(), startup_phase_s=dict.fromkeys(StartPhase, 1.0)),
    status=replace(STATUS, gpu=GpuStatus(1, 1, 8, 2, 9)),
    core_bytes=7,
    adapters=ADAPTERS,
)
"""An engine of which everything is known that any can tell."""


def exported() -> dict[str, set[tuple[str, ...]]]:
    """By family what its samples have in their labels beside `model_name`, in the registry's order."""
    text = exposition.render("m", WHOLE, Recorder(), vllm_names=False).decode()
    found: dict[str, set[tuple[str, ...]]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name.removeprefix("pagefleet_") + ("_total" if family.type == "counter" else "")
        labels = [label for label in REGISTERED[name].labels if label != MODEL]
        found[name] = {tuple(sample.labels[label] for label in labels) for sample in family.samples}
    return found


@pytest.mark.parametrize("name", sorted(CONTRACT.keys() - ABSENT))
def test_what_is_promised_is_registered_and_exported_in_that_kind_and_with_these_labels(name: str) -> None:
    kind, labels, _ = CONTRACT[name]
    assert (REGISTERED[name].kind, REGISTERED[name].labels) == (kind, (MODEL, *labels))
    assert exported()[name]


def test_what_is_registered_is_promised_or_has_its_reason_here() -> None:
    assert REGISTERED.keys() == CONTRACT.keys() - ABSENT | BEYOND.keys()


@pytest.mark.parametrize("name", [name for name, promised in CONTRACT.items() if promised.values])
def test_a_label_has_the_values_that_are_promised_but_for_those_with_a_reason(name: str) -> None:
    absent = {value for family, value in ABSENT_VALUES if family == name}
    beyond = {value for family, value in BEYOND_VALUES if family == name}
    promised = set(CONTRACT[name].values.split())
    assert absent <= promised
    assert {value for (value,) in exported()[name]} == promised - absent | beyond


@pytest.mark.parametrize(("name", "first"), [("inter_token_latency_seconds", 0.0005), ("request_queue_seconds", 0.001)])
def test_the_buckets_begin_where_fast_gpus_do(name: str, first: float) -> None:
    assert REGISTERED[name].buckets[0] == first


def test_vllms_names_are_the_promised_ones() -> None:
    registered = {alias.name.removeprefix("vllm:"): alias.labels for alias, _ in VLLM_ALIASES}
    assert registered == {name: ("engine", MODEL, *labels) for name, labels in ALIASES.items()}
