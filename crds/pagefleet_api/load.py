"""`/load`: what an engine pod says of itself to scrapers, the drain and the router."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt
from pydantic.alias_generators import to_camel


class EngineState(StrEnum):
    """Life of an engine process as its endpoints tell it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Load(BaseModel):
    """One pod's load; `running + waiting` is every request that is accepted and not finished.

    `waiting` counts what the scheduler left without a seat in its latest pass. A request that the
    scheduler has not looked at yet counts as running: it waits for no seat, and a sample taken between
    two passes must not look like a queue.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    state: EngineState
    running: NonNegativeInt
    waiting: NonNegativeInt
    max_num_seqs: int = Field(ge=1)
    block_size: int = Field(ge=1)
    blocks_used: NonNegativeInt
    blocks_total: int = Field(ge=1)
    queued_prompt_tokens: NonNegativeInt
    seconds_since_last_step: NonNegativeFloat
    reason: str | None = None
    """Why the pod is not alive although its state may be ready, as `/healthz` says it; None while it is."""

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished."""
        return self.running + self.waiting

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that requests reference, 0..1."""
        return self.blocks_used / self.blocks_total
