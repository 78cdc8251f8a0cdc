"""What the API process and the core process say to each other: msgpack frames over a local stream socket.

A frame is a 4-byte big-endian length and that many bytes of msgpack. Each side sends what it has once a
step, so a frame carries lists.
"""

import msgspec

from pagefleet_api.start_phase import StartPhase
from pagefleet_engine.steps import GpuStatus, Sampling, TokenLogprobs

FRAME_HEADER_BYTES = 4


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """One sequence to generate. The API process has checked that it can fit (`scheduler.admission`).

    `request_id` is unique for the life of the core. `cache_salt` keeps tenants' prefixes apart.
    `priority` and `tenant` are for the policies that go by them; the smallest priority is first.
    `adapter` is the place in the launch of the LoRA adapter that answers; None is the model itself.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""
    adapter: int | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Forget these; unknown and finished ids are no error."""

    request_ids: tuple[int, ...]


ToCore = Submit | Abort


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """News of one request: a token, prompt log-probabilities, the end, or several of these at once.

    `finish_reason` is "stop" (a stop token, which is in `token_id`), "length", "abort" or "error".
    """

    request_id: int
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    cached_prompt_tokens: int | None = None
    """Prompt tokens taken from the prefix cache: the request has taken its first seat. Told before the step
    that begins to compute it, once, and never of a request that ended without a seat."""


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds of one step by phase, and its size."""

    schedule_s: float
    forward_s: float
    batch_tokens: int


class CoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The core's state after a scheduling pass; totals count from its start.

    `prefill_tokens_total` and `decode_tokens_total` are all that was planned to be computed: of prompts, and of what a
    preemption makes be computed again; and to get one more token each. `gpu` is None where no GPU computes.
    """

    running: int
    waiting: int
    queued_prompt_tokens: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    blocks_leaked: int
    prompt_tokens_computed_total: int
    prompt_tokens_cached_total: int
    prefix_queries_total: int
    prefix_hits_total: int
    preemptions_total: int
    block_allocation_failures_total: int
    prefill_tokens_total: int
    decode_tokens_total: int
    seconds_since_last_step: float
    """Age of the latest step's end, or of the latest progress inside a long step."""
    gpu: GpuStatus | None = None


class CoreReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded and has produced a first real token."""

    max_model_len: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    dtype: str
    device: str
    memory_bytes: dict[str, int]
    startup_phase_s: dict[StartPhase, float]


class CoreFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The core cannot start or go on; the process ends after this."""

    message: str


class StepReport(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """News after a step, or before one that seats somebody; or a heartbeat with no events at least every
    half second while idle or loading, and as often during a long step that makes progress."""

    events: tuple[TokenEvent, ...] = ()
    status: CoreStatus | None = None
    times: tuple[StepTimes, ...] = ()


FromCore = CoreReady | CoreFailed | StepReport
