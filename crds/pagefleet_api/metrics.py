"""Every metric once: name, kind, unit, labels, help, buckets. Engine and operator register from here, the
scraper reads from here, dashboards and alerts are checked against it."""

from dataclasses import dataclass
from enum import StrEnum

from pagefleet_api.start_phase import StartPhase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Served whatever the scraper asks for: an OpenMetrics answer may rename `vllm:x` to `vllm_x`."""


class Kind(StrEnum):
    """Prometheus metric types in use."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family; a counter's `name` ends in `_total` as it does on the wire."""

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The sample names that the family has on the wire."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


MODEL = "model_name"
RECENT_S = 30
"""Gauges about an engine's recent steps are about so many seconds."""
NAMESPACE = "inference_namespace"
SERVICE = "inference_service"

_TIME_TO_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1,
    2.5, 5, 7.5, 10, 20, 40, 80, 160,
)  # fmt: skip
_INTER_TOKEN_S = (
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5,
)  # fmt: skip
_REQUEST_S = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5,
    5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
)  # fmt: skip
_STEP_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000)
_RECONCILE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_DECISION_S = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 20, 30, 60)
_COLD_START_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)
_DRAIN_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)


def _gauge(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name=f"pagefleet_{name}", kind=Kind.GAUGE, help=help_text, labels=labels, unit=unit)


def _counter(name: str, help_text: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name=f"pagefleet_{name}", kind=Kind.COUNTER, help=help_text, labels=labels, unit=unit)


def _histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str, unit: str = "") -> Metric:
    return Metric(
        name=f"pagefleet_{name}", kind=Kind.HISTOGRAM, help=help_text, labels=labels, unit=unit, buckets=buckets
    )


class Engine:
    """What an engine pod exports; every family has the label `model_name`."""

    REQUESTS_RUNNING = _gauge(
        "requests_running",
        "Open requests that do not wait: they hold a seat in the batch, or are on the way to one or from it.",
        MODEL,
    )
    REQUESTS_WAITING = _gauge("requests_waiting", "Requests that the scheduler left without a seat.", MODEL)
    REQUESTS_WAITING_BY_REASON = _gauge(
        "requests_waiting_by_reason",
        "Requests without a seat by what the earliest lacks: seats, or capacity (KV blocks, room in the step).",
        MODEL,
        "reason",
    )
    KV_CACHE_USAGE = _gauge(
        "kv_cache_usage_ratio", "KV blocks that requests reference / all blocks.", MODEL, unit="ratio"
    )
    KV_DEMAND = _gauge(
        "kv_demand_ratio", "(KV tokens used + prompt tokens queued) / capacity; may pass 1.", MODEL, unit="ratio"
    )
    KV_BLOCKS = _gauge("kv_blocks", "KV blocks by state: free, cached (reusable) or used.", MODEL, "state")
    KV_BLOCKS_LEAKED = _gauge(
        "kv_blocks_leaked", "KV blocks that no request holds and no list has; must stay 0.", MODEL
    )
    CACHE_CONFIG_INFO = _gauge(
        "cache_config_info", "Shape of the KV pool; always 1.", MODEL, "block_size", "num_blocks", "dtype"
    )
    PREFILL_DECODE_TOKENS = _gauge(
        "prefill_decode_token_ratio",
        f"Tokens computed of prompts / tokens decoded, of the last {RECENT_S} s; absent while none were decoded.",
        MODEL,
        unit="ratio",
    )
    CUDA_GRAPH_PADDING = _gauge(
        "cuda_graph_padding_ratio",
        f"Padding rows / all rows of steps that replayed CUDA graphs, of the last {RECENT_S} s; absent while none did.",
        MODEL,
        unit="ratio",
    )
    LORA_ADAPTERS_INFO = _gauge(
        "lora_adapters_info", "A LoRA adapter that lies beside the model; always 1.", MODEL, "adapter", "rank"
    )
    SECONDS_SINCE_LAST_STEP = _gauge(
        "seconds_since_last_step", "Age of the latest step while there is work, else 0.", MODEL, unit="seconds"
    )
    MEMORY_BYTES = _gauge(
        "memory_bytes",
        "Memory of the core process by kind, which overlap. Taken at the start: weights, kv; on a GPU activations (the "
        "largest step), reserved (graphs, driver, margin). Now: allocated (tensors on the GPU), process (resident).",
        MODEL,
        "kind",
        unit="bytes",
    )
    ENGINE_STATE = _gauge("engine_state", "1 for the state that the engine is in.", MODEL, "state")
    PROMPT_TOKENS = _counter("prompt_tokens_total", "Prompt tokens of accepted requests, each prompt once.", MODEL)
    GENERATION_TOKENS = _counter("generation_tokens_total", "Tokens generated for accepted requests.", MODEL)
    PROMPT_TOKENS_BY_SOURCE = _counter(
        "prompt_tokens_by_source_total", "Prompt tokens computed or taken from the prefix cache.", MODEL, "source"
    )
    PREFIX_CACHE_QUERIES = _counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", MODEL)
    PREFIX_CACHE_HITS = _counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", MODEL)
    PREEMPTIONS = _counter(
        "preemptions_total", "Requests that gave their blocks back and were computed again.", MODEL, "kind"
    )
    BLOCK_ALLOCATION_FAILURES = _counter("block_allocation_failures_total", "Times that no KV block was free.", MODEL)
    CUDA_GRAPH_STEPS = _counter(
        "cuda_graph_steps_total",
        "Steps of a GPU by whether they replayed CUDA graphs: hit true or false.",
        MODEL,
        "hit",
    )
    REQUESTS = _counter(
        "requests_total",
        "Accepted requests by how they ended: stop, length, abort or error; each choice of n counts.",
        MODEL,
        "outcome",
    )
    REJECTIONS = _counter("rejections_total", "Requests refused before any work, by reason.", MODEL, "reason")
    CLIENT_DISCONNECTS = _counter(
        "client_disconnects_total", "HTTP requests whose client hung up before the end.", MODEL
    )
    TIME_TO_FIRST_TOKEN = _histogram(
        "time_to_first_token_seconds",
        "From the request's arrival to its first token.",
        _TIME_TO_FIRST_TOKEN_S,
        MODEL,
        unit="seconds",
    )
    INTER_TOKEN_LATENCY = _histogram(
        "inter_token_latency_seconds", "Between two tokens of one request.", _INTER_TOKEN_S, MODEL, unit="seconds"
    )
    REQUEST_QUEUE = _histogram(
        "request_queue_seconds", "From arrival to the first seat.", _REQUEST_S, MODEL, unit="seconds"
    )
    REQUEST_PREFILL = _histogram(
        "request_prefill_seconds", "From the seat to the first token.", _REQUEST_S, MODEL, unit="seconds"
    )
    REQUEST_DECODE = _histogram(
        "request_decode_seconds", "From the first token to the last.", _REQUEST_S, MODEL, unit="seconds"
    )
    REQUEST_INFERENCE = _histogram(
        "request_inference_seconds", "From the seat to the last token.", _REQUEST_S, MODEL, unit="seconds"
    )
    REQUEST_DURATION = _histogram(
        "request_duration_seconds", "From arrival to the end.", _REQUEST_S, MODEL, unit="seconds"
    )
    REQUEST_PROMPT_TOKENS = _histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS, MODEL)
    REQUEST_GENERATION_TOKENS = _histogram(
        "request_generation_tokens", "Generated tokens of a request.", _TOKENS, MODEL
    )
    STEP_PHASE = _histogram(
        "step_phase_seconds",
        "Time of one step by phase: schedule, or forward, which has preparing and sampling in it.",
        _STEP_S,
        MODEL,
        "phase",
        unit="seconds",
    )
    BATCH_TOKENS = _histogram("batch_tokens", "Tokens computed in one step.", _TOKENS, MODEL)
    STARTUP_PHASE = _gauge(
        "startup_phase_seconds",
        f"Time of each phase of the start: {', '.join(StartPhase)}; profile and graphs on a GPU alone.",
        MODEL,
        "phase",
        unit="seconds",
    )


ENGINE = tuple(value for value in vars(Engine).values() if isinstance(value, Metric))


class Operator:
    """What the operator exports; a family about a service has the labels `inference_namespace`, `inference_service`."""

    RECONCILE = _histogram(
        "reconcile_seconds", "One pass over one service, by result.", _RECONCILE_S, "result", unit="seconds"
    )
    RECONCILE_QUEUE_DEPTH = _gauge("reconcile_queue_depth", "Services that wait for their pass.")
    DECISION = _histogram(
        "decision_seconds",
        "From the sample that moved the answer to the written replicas.",
        _DECISION_S,
        unit="seconds",
    )
    DESIRED_REPLICAS = _gauge("desired_replicas", "Replicas that the service should have.", NAMESPACE, SERVICE)
    READY_REPLICAS = _gauge("ready_replicas", "Pods that serve.", NAMESPACE, SERVICE)
    DRAINING_REPLICAS = _gauge(
        "draining_replicas", "Pods that finish their answers before they go.", NAMESPACE, SERVICE
    )
    SCALE_EVENTS = _counter(
        "scale_events_total", "Changes of the wanted replicas.", NAMESPACE, SERVICE, "direction", "driver"
    )
    METRICS_AGE = _gauge(
        "metrics_age_seconds", "Age of the oldest sample that a decision used.", NAMESPACE, SERVICE, unit="seconds"
    )
    SCRAPE_ERRORS = _counter(
        "scrape_errors_total", "Engine pods that gave no usable answer.", NAMESPACE, SERVICE, "reason"
    )
    DRAIN = _histogram(
        "drain_seconds", "From the label flip to the pod's last answer.", _DRAIN_S, NAMESPACE, SERVICE, unit="seconds"
    )
    DRAIN_ABORTED = _counter(
        "drain_aborted_requests_total", "Answers still running when a drain's time was up.", NAMESPACE, SERVICE
    )
    COLD_START = _histogram(
        "cold_start_seconds",
        "Parts of a pod's start, one after another: schedule, image, weights, warm_up.",
        _COLD_START_S,
        NAMESPACE,
        SERVICE,
        "phase",
        unit="seconds",
    )
    API_WRITES = _counter("api_writes_total", "Writes to the API server by kind.", "kind")
    LEADER = _gauge("leader", "1 while this replica holds the Lease.")


OPERATOR = tuple(value for value in vars(Operator).values() if isinstance(value, Metric))
