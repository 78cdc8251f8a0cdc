"""What a simulation takes and gives."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from pagefleet_api.step_costs import StepCosts

FIRST_MOMENT = datetime(2026, 1, 5, tzinfo=UTC)
"""When a trace without dates begins: a Monday."""


class Request(NamedTuple):
    """One request of a trace."""

    arrival_s: float
    """Since the trace began."""
    prompt_tokens: int
    output_tokens: int
    """At least 1: every answer has a token."""


class Trace(NamedTuple):
    """Requests in the order of their arrival."""

    requests: tuple[Request, ...]
    began: datetime = FIRST_MOMENT
    """The date and time of second 0, for schedules."""


class Refusal(StrEnum):
    """Why a pod takes no request."""

    QUEUE_FULL = "queueFull"
    """429: so many wait for a seat already."""
    BEYOND_MODEL_LEN = "beyondMaxModelLen"
    """400: the prompt leaves an answer no room."""
    BEYOND_KV_CACHE = "beyondKvCache"
    """400: the same, where the cache holds fewer tokens than that."""


class Refused(NamedTuple):
    """Requests that were refused for one reason."""

    why: Refusal
    requests: int
    limit: int
    """The setting that was in their way."""


class Balancing(StrEnum):
    """Which ready pod gets a request."""

    LEAST_LOAD = "least-load"
    """The one with fewest in flight."""
    RANDOM = "random"
    """Any, as a Service of Kubernetes does with new connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One pod as a queue with seats, a KV cache, and steps that cost time."""

    costs: StepCosts
    kv_tokens: int
    """Tokens that its cache holds."""
    max_num_seqs: int = 256
    max_queued_requests: int = 1024
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens; None: as long as the cache."""
    max_num_batched_tokens: int = 8192
    itl_goal_s: float = 0.050
    """A step that decodes takes in no more of a prompt than keeps it below this."""

    @property
    def window_tokens(self) -> int:
        """The longest sequence."""
        return self.kv_tokens if self.max_model_len is None else min(self.max_model_len, self.kv_tokens)

    @property
    def too_long(self) -> Refusal:
        """Why a prompt that fills the window is refused."""
        told = self.max_model_len is not None and self.max_model_len <= self.kv_tokens
        return Refusal.BEYOND_MODEL_LEN if told else Refusal.BEYOND_KV_CACHE

    def limit(self, why: Refusal) -> int:
        """The setting that a refusal is about."""
        return self.max_queued_requests if why is Refusal.QUEUE_FULL else self.window_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """The pods and what surrounds them."""

    engine: EngineModel
    start_p50_s: float = 60.0
    """From a pod's creation until it is ready: half take no longer."""
    start_p95_s: float = 90.0
    drain_timeout_s: float = 600.0
    initial_replicas: int | None = None
    """Ready at the beginning; None: the policy's least, or its fixed number."""
    balancing: Balancing = Balancing.LEAST_LOAD
    sync_busy_s: float = 2.0
    """Between two decisions while the load is near a threshold or pods are on their way, as the operator does."""
    sync_calm_s: float = 4.0


class Moment(NamedTuple):
    """From here on, so many pods are ready and so many are asked for."""

    t: float
    """Seconds since the trace began."""
    replicas: int
    """Pods that get requests."""
    desired: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a trace."""

    trace: Trace
    timeline: tuple[Moment, ...]
    queue_waits_s: tuple[float, ...]
    """From arrival to a seat, of each request that got one."""
    first_tokens_s: tuple[float | None, ...]
    """From arrival to the first token, by request; None where there was none."""
    completed: int
    refusals: tuple[Refused, ...]
    """What was answered 429 or 400 at once, by reason; those that came."""
    aborted: int
    """Cut off by the end of a drain."""
    pod_seconds: float
    """From each pod's creation until it was gone, or the end."""
    end_s: float
    """When the last request had ended."""

    @property
    def refused(self) -> int:
        """For any reason."""
        return sum(each.requests for each in self.refusals)
