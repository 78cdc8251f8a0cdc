"""Everything that the endpoints share, made once by the server."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

from pagefleet_api.launch import Launch
from pagefleet_api.metrics import Engine
from pagefleet_engine.api import errors, health
from pagefleet_engine.api.auth import Keys
from pagefleet_engine.api.core_client import Clock, CoreClient
from pagefleet_engine.api.drain import Intake
from pagefleet_engine.api.errors import ApiError, Cut, Draining, Starting
from pagefleet_engine.api.gate import Gate
from pagefleet_engine.api.model import ServedModel
from pagefleet_engine.api.names import ServedNames
from pagefleet_engine.api.recorder import Recorder
from pagefleet_engine.api.refusal_log import Refusal, RefusalLog
from pagefleet_engine.api.snapshot import Snapshot
from pagefleet_engine.api.uploads import Uploads
from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.wire import CoreReady

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class EngineHost:
    """One engine as the API process holds it.

    `text_threads` runs templates and tokenizers; `adapters` are those of the launch; `core_bytes` tells what the
    core holds of main memory, None where that is not known; `changed` is called when the end of the process may
    have come nearer (a signal, a lost core, a finished request). `open_responses` counts requests for answers that
    have come whole and whose last byte is not handed to a connection yet.
    """

    def __init__(
        self,
        launch: Launch,
        model_name: str,
        *,
        clock: Clock,
        created_at_s: int,
        text_threads: ThreadPoolExecutor,
        adapters: tuple[AdapterFolder, ...],
        core_bytes: Callable[[], int | None],
        changed: Callable[[], None],
    ) -> None:
        self.launch = launch
        self.names = ServedNames(model_name, tuple(adapter.name for adapter in launch.adapters))
        self.clock = clock
        self.created_at_s = created_at_s
        self.text_threads = text_threads
        self._adapters, self._core_bytes = adapters, core_bytes
        self.changed = changed
        self.keys = Keys(launch.api_key)
        self.recorder = Recorder()
        self.core = CoreClient(clock, self.recorder.step, changed)
        self.gate = Gate(launch, self.core, self.recorder, clock)
        self.uploads = Uploads(lambda: self.gate.intake is Intake.REFUSE)
        self._waits: set[asyncio.Timeout] = set()
        self._refusals = RefusalLog(lambda delay_s, tell: asyncio.get_running_loop().call_later(delay_s, tell))
        self.open_responses = 0
        self.loop_beat_at_s = self._started_at_s = clock()
        self._model: ServedModel | None = None

    @property
    def model_name(self) -> str:
        """The name of the model itself, which stands for the engine in metrics and logs."""
        return self.names.model

    @property
    def model(self) -> ServedModel:
        """The served model; raises `Starting` until it is loaded."""
        if self._model is None:
            raise Starting("The model's tokenizer is not loaded yet.", retry_after_s=1)
        return self._model

    @property
    def ready(self) -> CoreReady:
        """What the core said when it was ready; raises `Starting` before."""
        if self.core.ready is None:
            raise Starting("The model is not loaded yet.", retry_after_s=1)
        return self.core.ready

    @property
    def phase(self) -> str:
        """What the start is at: import, load (weights and warm-up), tokenizer; or the state after it."""
        if self.gate.was_ready:
            return self.gate.state.value
        if self.core.ready is not None:
            return "tokenizer"
        return "import" if self.core.heard_at_s is None else "load"

    def use_model(self, model: ServedModel) -> None:
        """The tokenizer is there; requests can be served once the core is ready too."""
        self._model = model
        self.gate.loaded = True
        self.changed()

    def refused(self, error: ApiError) -> None:
        """A connection was refused, or what came on it before it was a request: count and log it."""
        if (reason := errors.rejection_reason(error)) is not None:
            self.recorder.count(Engine.REJECTIONS, reason)
        self._refusals.add(Refusal(errors.http_status(error), errors.code(error), error.message))

    def cut(self) -> None:
        """End every open answer, as the process ends."""
        said = "The server ended before this answer did. Send the request again."
        self.core.end_all(Cut(said, retry_after_s=1), Draining(said, retry_after_s=1))
        self.uploads.give_up()
        for wait in self._waits:
            wait.reschedule(0)
        self._waits.clear()

    async def in_text_thread(self, work: Callable[[*_Arguments], _Result], *args: *_Arguments) -> _Result:
        """Run `work` off the loop, so that probes and other answers go on; raises `Cut` when `cut` comes first."""
        future = asyncio.get_running_loop().run_in_executor(self.text_threads, work, *args)
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    return await future
                finally:
                    self._waits.discard(wait)
        except TimeoutError as error:
            if not wait.expired():
                raise
            raise Cut("The server ended before the request was read.", retry_after_s=1) from error

    def ailment(self) -> str | None:
        """Why the engine is not alive, or None; see `health`."""
        status = self.core.status
        seen = health.CoreSeen(
            started_at_s=self._started_at_s,
            loop_beat_at_s=self.loop_beat_at_s,
            heard_at_s=self.core.heard_at_s,
            failure=self.core.failure,
            busy_since_s=self.core.busy_since_s,
            since_last_step_s=0.0 if status is None else status.seconds_since_last_step,
        )
        return health.ailment(seen, self.clock())

    def snapshot(self) -> Snapshot:
        """A look at the engine now."""
        heard_at_s, busy_since_s = self.core.heard_at_s, self.core.busy_since_s
        return Snapshot(
            state=self.gate.state,
            ready=self.core.ready,
            status=self.core.status,
            earlier=self.core.recent.earlier,
            silent_s=0.0 if heard_at_s is None else self.clock() - heard_at_s,
            busy_s=None if busy_since_s is None else self.clock() - busy_since_s,
            open_sequences=self.gate.open_sequences,
            ailment=self.ailment(),
            core_bytes=self._core_bytes(),
            adapters=self._adapters,
        )
