"""TensorRT-LLM by trtllm-serve with its PyTorch backend.

What has no flag is in a file of options, which reaches the pod as one of its own annotations: without it the engine
counts no requests. What it does with open answers at SIGTERM differs between its versions, so SIGTERM waits until
nothing runs.
"""

import json
from dataclasses import replace
from typing import Any

from pagefleet_api import labels, quantity
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import Engine, InferenceService
from pagefleet_api.speculative import DEFAULT_TOKENS
from pagefleet_operator.facts.expansion import literal
from pagefleet_operator.render import chat_template
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes.parts import (
    EngineParts,
    chosen,
    flags,
    foreign_parts,
    given,
    leaving_when_idle,
    tensor,
    told,
)

_OPTIONS = "pagefleet.io/tensorrt-llm-options"
_FOLDER, _FILE, _VOLUME = "/etc/pagefleet/tensorrt-llm", "options.yaml", "engine-options"
_FREE_SHARE = 0.9
"""Its default, said again because a part of `kv_cache_config` replaces the whole of it."""


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What TensorRT-LLM brings into the pod."""
    args, leaves = (
        [literal(model.path or model.uri), *_flags(service)],
        leaving_when_idle(service, Runtime.TENSORRT_LLM),
    )
    plain = foreign_parts(service, Runtime.TENSORRT_LLM, args, command=["trtllm-serve", "serve"], leaves=leaves)
    file = {"path": _FILE, "fieldRef": {"fieldPath": f"metadata.annotations['{_OPTIONS}']"}}
    return replace(
        plain,
        annotations={_OPTIONS: json.dumps(_options(service.spec.engine))},
        volumes=[{"name": _VOLUME, "downwardAPI": {"items": [file]}}],
        mounts=[{"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}],
    )


def _flags(service: InferenceService) -> list[str]:
    engine = service.spec.engine
    return flags(
        ("--host", "0.0.0.0"),
        ("--port", labels.ENGINE_PORT),
        ("--max_seq_len", engine.max_model_len),
        ("--max_batch_size", given(engine, "max_num_seqs")),
        ("--max_num_tokens", engine.max_num_batched_tokens),
        ("--tp_size", tensor(service.spec)),
        ("--chat_template", chat_template.path(service.spec)),
        ("--extra_llm_api_options", f"{_FOLDER}/{_FILE}"),
    )


def _options(engine: Engine) -> dict[str, Any]:
    """JSON is YAML."""
    options: dict[str, Any] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    if chosen(engine.dtype):
        options["dtype"] = engine.dtype
    cache = told(
        dtype=chosen(engine.kv_cache.dtype),
        tokens_per_block=engine.kv_cache.block_size,
        host_cache_size=_host_bytes(engine),
    )
    if cache:
        options["kv_cache_config"] = {"free_gpu_memory_fraction": _FREE_SHARE, **cache}
    speculative = engine.speculative
    if speculative.guesses:
        guessed = told(
            max_draft_len=speculative.tokens or DEFAULT_TOKENS, max_matching_ngram_size=speculative.lookup_max
        )
        options["speculative_config"] = {"decoding_type": "NGram", **guessed}
    return options


def _host_bytes(engine: Engine) -> int | None:
    """Of each rank. Source: `host_cache_size` in tensorrt_llm/_torch/pyexecutor/resource_manager.py (1.2)."""
    host = engine.kv_cache.host_offload
    return None if host is None else quantity.to_bytes(host) // engine.parallelism.tensor
