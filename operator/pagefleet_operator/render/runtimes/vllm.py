"""vLLM, 0.18 and later: from then on --shutdown-timeout lets it finish its answers after SIGTERM.

Without that flag it leaves open streams hanging until the client gives up. While it drains, /health stays 200 and new
requests get 500: so it is taken out of the Service first, and its SIGTERM waits until endpoints have followed.
"""

import json
from dataclasses import replace

from pagefleet_api import labels, quantity
from pagefleet_api.gpus import Device
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import Engine, InferenceService
from pagefleet_api.sizing.adapters import DEFAULT_RANK, vllm_rank
from pagefleet_api.speculative import DEFAULT_TOKENS, Speculative
from pagefleet_operator.facts.expansion import literal
from pagefleet_operator.render import chat_template
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
    told,
)

_METHODS = {"draft": "draft_model"}
_ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""A pod has no cores of its own: threads that are bound to some would share them with another pod's."""

_STEP_LIMIT_S = 120
_IN_GROUP = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(_STEP_LIMIT_S)}
"""A leader learns of a worker's end by nothing but a step that takes too long, 300 s by its own: until then its streams
hang, /health stays 200, and after a SIGTERM it waits for them. Source: `execute_model` in
vllm/v1/executor/multiproc_executor.py (v0.18 to v0.32)."""


def parts(service: InferenceService, model: ModelPlace) -> EngineParts:
    """What vLLM brings into the pod."""
    on_cpu = service.spec.engine.device is Device.CPU
    args = [literal(model.path or model.uri), *_flags(service, model), *_adapters(service, model)]
    surroundings = {**(_ON_CPU if on_cpu else {}), **(_IN_GROUP if service.spec.in_groups else {})}
    environment = {"VLLM_NO_USAGE_STATS": "1", **surroundings}
    leader = foreign_parts(service, Runtime.VLLM, args, command=["vllm", "serve"], environment=environment)
    return replace(leader, worker_args=[*leader.args, "--headless"])


def _flags(service: InferenceService, model: ModelPlace) -> list[str]:
    engine, size = service.spec.engine, service.spec.engine.kv_cache.size
    return flags(
        ("--port", labels.ENGINE_PORT),
        ("--served-model-name", service.served_name),
        ("--dtype", chosen(engine.dtype)),
        ("--quantization", engine.quantization),
        ("--max-model-len", engine.max_model_len),
        ("--max-num-seqs", given(engine, "max_num_seqs")),
        ("--max-num-batched-tokens", engine.max_num_batched_tokens),
        ("--max-num-queued-reqs", _most_open(engine)),
        ("--scheduling-policy", given(engine.scheduling, "policy")),
        ("--kv-cache-memory-bytes", None if size is None else quantity.to_bytes(size)),
        ("--gpu-memory-utilization", share(engine)),
        ("--kv-cache-dtype", chosen(engine.kv_cache.dtype)),
        ("--block-size", engine.kv_cache.block_size),
        ("--kv-offloading-size", _host_gib(service)),
        ("--speculative-config", _guesses(engine.speculative, model.draft)),
        ("--tensor-parallel-size", tensor(service.spec)),
        ("--pipeline-parallel-size", pipeline(service.spec)),
        ("--nnodes", pipeline(service.spec)),
        ("--node-rank", in_group(service.spec, WORKER_INDEX)),
        ("--master-addr", in_group(service.spec, LEADER_ADDRESS)),
        ("--chat-template", chat_template.path(service.spec)),
        # 0 is its word for "end at once", which leaves streams hanging
        ("--shutdown-timeout", max(service.spec.drain.timeout_seconds, 1)),
    )


def _adapters(service: InferenceService, model: ModelPlace) -> list[str]:
    """All may be in one batch. One whose rank is above the limit ends its start, and its last words say so."""
    if not model.adapters:
        return []
    ranks = [adapter.rank or DEFAULT_RANK for adapter in service.spec.model.adapters]
    limits = flags(("--max-loras", len(model.adapters)), ("--max-lora-rank", vllm_rank(ranks)))
    return ["--enable-lora", *limits, "--lora-modules", *(literal(str(each)) for each in model.adapters)]


def _host_gib(service: InferenceService) -> str | None:
    """All ranks share it, those of other pods too. Source: `kv_offloading_size` in vllm/config/cache.py (v0.18)."""
    host, pods = service.spec.engine.kv_cache.host_offload, service.spec.engine.parallelism.pipeline
    return None if host is None else f"{quantity.to_bytes(host) * pods / 2**30:g}"


def _guesses(speculative: Speculative, draft: str | None) -> str | None:
    """Source: `SpeculativeConfig` in vllm/config/speculative.py (v0.18); what is left out is its own."""
    if not speculative.guesses:
        return None
    guessed = told(
        method=_METHODS.get(speculative.method, speculative.method),
        model=draft,
        num_speculative_tokens=speculative.tokens or DEFAULT_TOKENS,
        prompt_lookup_max=speculative.lookup_max,
        prompt_lookup_min=speculative.lookup_min,
    )
    return json.dumps(guessed)


def _most_open(engine: Engine) -> int | None:
    """Its limit counts running requests too."""
    queued: int | None = given(engine, "max_queued_requests")
    return None if queued is None else queued + engine.max_num_seqs
