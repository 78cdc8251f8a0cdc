"""What an engine pod holds: `/load` of our own engine, and what can be known of any engine."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat
from pydantic.alias_generators import to_camel

_MOST = 2**53
"""More than anything here comes to; sums and shares of such numbers are floats still."""
Count = Annotated[int, Field(ge=0, le=_MOST)]
Some = Annotated[int, Field(ge=1, le=_MOST)]


class EngineState(StrEnum):
    """Life of an engine process as its endpoints tell it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Load(BaseModel):
    """What is known of one pod's load. A number that the engine does not tell is absent, never zero."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    state: EngineState | None = None
    """Absent for an engine that knows no drain: it serves whoever reaches it."""
    running: Count | None = None
    waiting: Count | None = None
    max_num_seqs: Some | None = None
    block_size: Some | None = None
    blocks_used: Count | None = None
    blocks_total: Some | None = None
    queued_prompt_tokens: Count | None = None
    seconds_since_last_step: NonNegativeFloat | None = None
    kv_share: float | None = Field(None, ge=0, exclude=True)
    """Share of the KV cache in use, from an engine that tells this in place of blocks."""
    reason: str | None = None
    """Why the pod is not alive although its state may be ready, as `/healthz` says it; None while it is."""

    @property
    def in_flight(self) -> int | None:
        """Requests accepted and not finished; None unless both parts are known."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting

    @property
    def kv_usage(self) -> float | None:
        """Share of the KV blocks that requests reference, 0..1."""
        if self.blocks_used is None or self.blocks_total is None:
            return self.kv_share
        return self.blocks_used / self.blocks_total


class LoadReport(Load):
    """`/load` of our own engine, where nothing is absent; `running + waiting` is every request accepted and not
    finished.

    `waiting` counts what the scheduler left without a seat in its latest pass. A request that the
    scheduler has not looked at yet counts as running: it waits for no seat, and a sample taken between
    two passes must not look like a queue.
    """

    state: EngineState
    running: Count
    waiting: Count
    max_num_seqs: Some
    block_size: Some
    blocks_used: Count
    blocks_total: Some
    queued_prompt_tokens: Count
    seconds_since_last_step: NonNegativeFloat

    @property
    def in_flight(self) -> int:
        """Requests accepted and not finished."""
        return self.running + self.waiting

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that requests reference, 0..1."""
        return self.blocks_used / self.blocks_total
