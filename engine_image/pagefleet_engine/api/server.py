"""The API process from its first line to its exit status."""

import asyncio
import contextlib
import functools
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import uvloop

from pagefleet_api.launch import Launch
from pagefleet_engine import logs
from pagefleet_engine.api import open_files
from pagefleet_engine.api.app import admin_app, client_app
from pagefleet_engine.api.core_child import CoreChild
from pagefleet_engine.api.drain import Ending, Intake
from pagefleet_engine.api.host import EngineHost
from pagefleet_engine.api.listeners import ClientListener, ProbeListener
from pagefleet_engine.api.model import ServedModel
from pagefleet_engine.api.names import served_name
from pagefleet_engine.api.templates import TemplateInvalid
from pagefleet_engine.models.adapter_files import AdapterFolder
from pagefleet_engine.models.errors import ModelError
from pagefleet_engine.models.source import ModelFiles

TEXT_THREADS = 4
_LAST_BYTES_S = 1.0
"""Time for error events to leave after open answers were cut."""
_TICK_S = 0.25
_ENDING_TICK_S = 0.05
_CORE_MESSAGE_S = 0.3

log = logging.getLogger(__name__)


def serve(
    launch: Launch,
    files: ModelFiles,
    adapters: tuple[AdapterFolder, ...],
    sockets: list[socket.socket],
    core: CoreChild,
    early: Sequence[signal.Signals],
) -> int:
    """Serve until the process is told to end or the core is lost; gives the exit status.

    `sockets` are the clients' listener and, with an admin port, the pod's own. `early` has the signals that
    come before the server handles them.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Server(launch, files, adapters, sockets, core, early, settle).run())


def settle(model: ServedModel) -> None:
    """Do before this process is ready what its first requests would wait for.

    That is a tokenizer's first encoding, and a collection that walks through all that was imported: a tenth of a
    second in which nothing is answered, at the moment of the first burst. What lives now lives as long as the
    process, and no later collection looks at it.
    """
    model.tokenizer.encode("A first prompt.", add_special=True)
    gc.collect()
    gc.freeze()


class Core(Protocol):
    """The core process as the server needs it; `CoreChild` is the real one."""

    @property
    def listener(self) -> socket.socket:
        """The unix socket that the core connects to."""
        ...

    def watch(self, ended: Callable[[int], None]) -> None:
        """Call `ended` with the exit status, from another thread, once the core has ended."""
        ...

    def resident_bytes(self) -> int | None:
        """What the core holds of the machine's memory now; None where that is not known."""
        ...


class Server:
    """Listeners, core and signals of one engine; `run` it once, in an event loop."""

    def __init__(
        self,
        launch: Launch,
        files: ModelFiles,
        adapters: tuple[AdapterFolder, ...],
        sockets: list[socket.socket],
        core: Core,
        early: Sequence[signal.Signals] = (),
        settle: Callable[[ServedModel], None] = lambda model: None,
    ) -> None:
        self._launch = launch
        self._files = files
        self._sockets = sockets
        self._child = core
        self._early = early
        self._settle = settle
        self._look_at_s = 0.0
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
        self.host = EngineHost(
            launch,
            served_name(launch.served_model_name, launch.model),
            clock=time.monotonic,
            created_at_s=int(time.time()),
            text_threads=self._threads,
            adapters=adapters,
            core_bytes=core.resident_bytes,
            changed=self._changed.set,
        )

    async def run(self) -> int:
        """See `serve`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal, signal.Signals(number))
        for number in self._early:
            self.on_signal(number)
        self._child.watch(functools.partial(self._on_core_exit, loop))
        core_server = await asyncio.start_unix_server(self.host.core.converse, sock=self._child.listener)
        sequences = self._launch.max_num_seqs + self._launch.max_queued_requests
        most = open_files.most_connections(sequences)
        clients = ClientListener(
            client_app(self.host), self._sockets[0], most_connections=most, refused=self.host.refused
        )
        probes = [ProbeListener(admin_app(self.host), bound) for bound in self._sockets[1:]]
        self._log_listening()
        loading = asyncio.create_task(self._load_model())
        try:
            return await self._until_the_end(clients)
        finally:
            loading.cancel()
            core_server.close()
            for listener in probes:
                listener.stop()
            await clients.leave()
            for listener in probes:
                listener.leave()
            self.host.core.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _log_listening(self) -> None:
        ports = [bound.getsockname()[1] for bound in self._sockets]
        log.info("listening", extra={"port": ports[0], "admin_port": ports[1] if len(ports) > 1 else None})

    async def _load_model(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            model = await loop.run_in_executor(self._threads, self._read_model)
        except (ModelError, TemplateInvalid) as error:
            self.host.core.fail(str(error))
        except Exception as error:  # whatever it is, the engine cannot serve without its tokenizer
            self.host.core.fail(f"the tokenizer cannot be loaded: {error}")
        else:
            self.host.use_model(model)

    def _read_model(self) -> ServedModel:
        model = ServedModel.load(self._files, self._launch.chat_template)
        self._settle(model)
        return model

    def on_signal(self, number: signal.Signals) -> None:
        """SIGTERM or SIGINT: the first begins the drain, the second ends the process at once."""
        gate = self.host.gate
        now_s = time.monotonic()
        gate.change_drain(lambda state: state.signal(now_s))
        log.info("signal_received", extra={"signal": number.name, "open": gate.open_sequences, "cut": gate.drain.cut})
        self._changed.set()

    def _on_core_exit(self, loop: asyncio.AbstractEventLoop, status: int) -> None:
        """From the watching thread. The core's last words, if any, may still be in the socket."""
        how = f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        message = f"the core process {how}"
        with contextlib.suppress(RuntimeError):  # the loop has closed: this process is ending too
            loop.call_soon_threadsafe(loop.call_later, _CORE_MESSAGE_S, self.host.core.fail, message)

    async def _until_the_end(self, clients: ClientListener) -> int:
        """Wait for a lost core (1) or an end by signal (0); open answers have been told when it returns."""
        host, told_ready = self.host, False
        while True:
            self._changed.clear()
            host.loop_beat_at_s = host.clock()
            if host.core.failure is not None:
                log.error("core_lost", extra={"reason": host.core.failure, "open": host.gate.open_sequences})
                logs.say_last(host.core.failure)
                await self._last_bytes()
                return 1
            if host.gate.was_ready and not told_ready:
                told_ready = True
                self._log_ready()
            if host.gate.intake is Intake.REFUSE:
                host.uploads.give_up()
            ending = self._ending(clients, was_ready=told_ready)
            if ending is not Ending.STAY:
                await self._end(ending)
                return 0
            with contextlib.suppress(TimeoutError):
                wait_s = _ENDING_TICK_S if host.gate.drain.terminating_at_s is not None else _TICK_S
                await asyncio.wait_for(self._changed.wait(), wait_s)

    def _ending(self, clients: ClientListener, *, was_ready: bool) -> Ending:
        drain, now_s, open_requests = self.host.gate.drain, time.monotonic(), self.host.open_responses
        if drain.terminating_at_s is not None or now_s >= self._look_at_s:
            open_requests += clients.undelivered(now_s)
            self._look_at_s = now_s + _TICK_S
        return drain.ending(
            now_s,
            open_requests=open_requests,
            drain_timeout_s=self._launch.drain_timeout_s,
            was_ready=was_ready,
        )

    def _log_ready(self) -> None:
        ready = self.host.ready
        log.info(
            "ready",
            extra={
                "model": self.host.model_name,
                "dtype": ready.dtype,
                "device": ready.device,
                "num_blocks": ready.num_blocks,
                "max_model_len": ready.max_model_len,
                "startup_phase_s": {phase: round(seconds, 3) for phase, seconds in ready.startup_phase_s.items()},
            },
        )

    async def _end(self, ending: Ending) -> None:
        host = self.host
        log.info("leaving", extra={"open": host.gate.open_sequences, "cut": ending is Ending.CUT})
        if ending is Ending.CUT:
            host.gate.change_drain(lambda state: state.signal(time.monotonic()))
            host.cut()
            await self._last_bytes()

    async def _last_bytes(self) -> None:
        """Let answers that were just ended reach their connections, for a bounded time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_BYTES_S):
                while self.host.open_responses:
                    self._changed.clear()
                    await self._changed.wait()
