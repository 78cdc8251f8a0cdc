"""The engine's families under vLLM's names, so that what was made for vLLM finds what it looks for. Pure."""

from pagefleet_api.metrics import MODEL, Engine, Metric

_ENGINE_LABEL = "engine"


def _alias(name: str, of: Metric, *, labels: tuple[str, ...] | None = None) -> tuple[Metric, Metric]:
    """`of` under a name of vLLM's, with its label `engine` first."""
    own = of.labels if labels is None else (MODEL, *labels)
    copy = Metric(
        name=f"vllm:{name}", kind=of.kind, help=of.help, unit=of.unit, labels=(_ENGINE_LABEL, *own), buckets=of.buckets
    )
    return copy, of


_LORA_LABELS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
_LORA = _alias("lora_requests_info", Engine.LORA_ADAPTERS_INFO, labels=_LORA_LABELS)
LORA_REQUESTS_INFO = _LORA[0]
"""All adapters in one series, as the Gateway API Inference Extension reads it (model server protocol, proposal 003).

Those that lie in memory, ready to serve, count as running; none waits, as none is ever loaded for a request.
"""
VLLM_ALIASES = (
    _alias("num_requests_running", Engine.REQUESTS_RUNNING),
    _alias("num_requests_waiting", Engine.REQUESTS_WAITING),
    _alias("kv_cache_usage_perc", Engine.KV_CACHE_USAGE),
    _alias("cache_config_info", Engine.CACHE_CONFIG_INFO, labels=("block_size", "num_gpu_blocks")),
    _LORA,
    _alias("prefix_cache_queries_total", Engine.PREFIX_CACHE_QUERIES),
    _alias("prefix_cache_hits_total", Engine.PREFIX_CACHE_HITS),
    _alias("num_preemptions_total", Engine.PREEMPTIONS, labels=()),
    _alias("prompt_tokens_total", Engine.PROMPT_TOKENS),
    _alias("generation_tokens_total", Engine.GENERATION_TOKENS),
    _alias("request_success_total", Engine.REQUESTS, labels=("finished_reason",)),
    _alias("time_to_first_token_seconds", Engine.TIME_TO_FIRST_TOKEN),
    _alias("inter_token_latency_seconds", Engine.INTER_TOKEN_LATENCY),
    _alias("e2e_request_latency_seconds", Engine.REQUEST_DURATION),
    _alias("request_queue_time_seconds", Engine.REQUEST_QUEUE),
    _alias("request_prefill_time_seconds", Engine.REQUEST_PREFILL),
    _alias("request_decode_time_seconds", Engine.REQUEST_DECODE),
    _alias("request_inference_time_seconds", Engine.REQUEST_INFERENCE),
    _alias("request_prompt_tokens", Engine.REQUEST_PROMPT_TOKENS),
    _alias("request_generation_tokens", Engine.REQUEST_GENERATION_TOKENS),
)
"""(alias, what it copies); the value is always the same."""
