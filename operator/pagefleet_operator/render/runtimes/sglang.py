"""SGLang: SIGTERM lets it finish its answers, without a limit of its own; /health is 503 meanwhile."""

from pagefleet_api import labels, quantity, scheduling
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import InferenceService
from pagefleet_api.speculative import DEFAULT_TOKENS, Speculative
from pagefleet_operator.facts.expansion import literal
from pagefleet_operator.render import chat_template, disk_cache
from pagefleet_operator.render.model import ModelPlace
from pagefleet_operator.render.runtimes.parts import (
    LEADER_ADDRESS,
    WORKER_INDEX,
    EngineParts,
    chosen,
    flags,
    foreign_parts,
    given,
    in_group,
    pipeline,
    share,
    tensor,
)

_RENDEZVOUS_PORT = 20000
_ALGORITHMS = {"ngram": "NGRAM", "draft": "STANDALONE"}
_KV_DTYPE = {"fp8": "fp8_e4m3"}


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What SGLang brings into the pod."""
    place = flags(("--model-path", model.path or model.uri), ("--host", "0.0.0.0"), ("--port", labels.ENGINE_PORT))
    guesses = _guesses(service.spec.engine.speculative, model.draft)
    args = [*place, "--enable-metrics", *_flags(service), *_order(service), *_host(service), *guesses]
    args += _adapters(model)
    command = ["python3", "-m", "sglang.launch_server"]
    return foreign_parts(service, Runtime.SGLANG, args, command=command, environment=_disk(service))


def _adapters(model: ModelPlace) -> list[str]:
    """All may be in one batch with requests for the model alone, which count as one more.

    Source: sglang/srt/lora/lora_manager.py (0.5.11).
    """
    if not model.adapters:
        return []
    most = flags(("--max-loras-per-batch", len(model.adapters) + 1))
    return ["--enable-lora", *most, "--lora-paths", *(literal(str(each)) for each in model.adapters)]


def _host(service: InferenceService) -> list[str]:
    """Each rank takes whole gigabytes. Source: `host_size` in sglang/srt/mem_cache/memory_pool_host.py (0.5.11)."""
    host, ranks = service.spec.engine.kv_cache.host_offload, service.spec.engine.parallelism.tensor
    if host is None:
        return []
    size = str(max(quantity.to_bytes(host) // (ranks * 10**9), 1))
    disk = ["--hicache-storage-backend", "file"] if service.spec.engine.kv_cache.disk_offload else []
    return ["--enable-hierarchical-cache", "--hicache-size", size, *disk]


def _disk(service: InferenceService) -> dict[str, str]:
    """Each rank removes what it read longest ago. Source: `LRUFileEvictor` in sglang/srt/mem_cache/storage/file
    (0.5.15 to 0.5.23); before 0.5.15 nothing is ever removed.
    """
    most = disk_cache.bytes_of_rank(service.spec)
    if most is None:
        return {}
    prefix = "SGLANG_HICACHE_FILE_BACKEND"
    return {f"{prefix}_STORAGE_DIR": disk_cache.FOLDER, f"{prefix}_MAX_SIZE": str(most)}


def _order(service: InferenceService) -> list[str]:
    """By itself the largest is first, and who gives no priority is last, which is nobody's 0.

    Source: `_sort_by_priority_and_fcfs` in sglang/srt/managers/schedule_policy.py (0.5.11), which takes fcfs beside it.
    """
    policy = given(service.spec.engine.scheduling, "policy")
    priority = ["--enable-priority-scheduling", "--schedule-low-priority-values-first", "--default-priority-value", "0"]
    by_arrival = flags(("--schedule-policy", policy and scheduling.DEFAULT))
    return [*(priority if policy == scheduling.PRIORITY else ()), *by_arrival]


def _flags(service: InferenceService) -> list[str]:
    engine = service.spec.engine
    return flags(
        ("--served-model-name", service.served_name),
        ("--dtype", chosen(engine.dtype)),
        ("--quantization", engine.quantization),
        ("--context-length", engine.max_model_len),
        ("--max-running-requests", given(engine, "max_num_seqs")),
        ("--chunked-prefill-size", engine.max_num_batched_tokens),
        ("--max-queued-requests", given(engine, "max_queued_requests")),
        ("--mem-fraction-static", share(engine)),
        ("--kv-cache-dtype", _KV_DTYPE.get(engine.kv_cache.dtype or "")),
        ("--page-size", engine.kv_cache.block_size),
        ("--tp-size", tensor(service.spec)),
        ("--pp-size", pipeline(service.spec)),
        ("--nnodes", pipeline(service.spec)),
        ("--node-rank", in_group(service.spec, WORKER_INDEX)),
        ("--dist-init-addr", in_group(service.spec, LEADER_ADDRESS, f":{_RENDEZVOUS_PORT}")),
        ("--chat-template", chat_template.path(service.spec)),
    )


def _guesses(speculative: Speculative, draft: str | None) -> list[str]:
    """Of what is checked it counts the latest token too, which guesses grow from.

    Source: `_handle_speculative_decoding` in sglang/srt/server_args.py (0.5.11).
    """
    algorithm, tokens = _ALGORITHMS.get(speculative.method), speculative.tokens
    if draft is not None:
        tokens = tokens or DEFAULT_TOKENS
    steps, branches = (None, None) if draft is None else (tokens, 1)
    return flags(
        ("--speculative-algorithm", algorithm),
        ("--speculative-draft-model-path", draft),
        ("--speculative-num-steps", steps),
        ("--speculative-eagle-topk", branches),
        ("--speculative-num-draft-tokens", None if tokens is None else tokens + 1),
    )
