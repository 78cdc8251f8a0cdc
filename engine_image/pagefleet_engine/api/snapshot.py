"""One consistent look at the engine, and what `/load` makes of it; pure."""

from dataclasses import dataclass

from pagefleet_api.load import EngineState, LoadReport
from pagefleet_engine.api import health
from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.wire import CoreReady, CoreStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The core's last words and the API process's own counts.

    `silent_s` is the age of `status` in seconds, `busy_s` how long the core has had requests, None while it
    has none; `open_sequences` counts accepted and unfinished ones. `ailment` is `health.ailment`; `earlier` is
    what `status` was a while ago (`recent.RecentTotals`), `core_bytes` what the core holds of main memory;
    `adapters` are those of the launch.
    """

    state: EngineState
    ready: CoreReady | None
    status: CoreStatus | None
    silent_s: float
    busy_s: float | None
    open_sequences: int
    ailment: str | None = None
    earlier: CoreStatus | None = None
    core_bytes: int | None = None
    adapters: tuple[AdapterFolder, ...] = ()

    @property
    def waiting(self) -> int:
        """Left without a seat by the latest pass."""
        return 0 if self.status is None else min(self.status.waiting, self.open_sequences)

    @property
    def running(self) -> int:
        """Every other open sequence; see `Load`."""
        return self.open_sequences - self.waiting

    @property
    def seconds_since_last_step(self) -> float:
        """How long no step has ended or progressed while there is work, else 0."""
        if self.status is None:
            return 0.0
        told_s = self.status.seconds_since_last_step
        return health.step_age_s(told_s=told_s, silent_s=self.silent_s, busy_s=self.busy_s)

    def load(self) -> LoadReport | None:
        """`/load`, or None while the size of the KV pool is not known."""
        if self.ready is None or self.status is None:
            return None
        return LoadReport(
            state=self.state,
            running=self.running,
            waiting=self.waiting,
            max_num_seqs=self.ready.max_num_seqs,
            block_size=self.ready.block_size,
            blocks_used=self.status.blocks_used,
            blocks_total=self.ready.num_blocks,
            queued_prompt_tokens=self.status.queued_prompt_tokens,
            seconds_since_last_step=self.seconds_since_last_step,
            reason=self.ailment,
        )
