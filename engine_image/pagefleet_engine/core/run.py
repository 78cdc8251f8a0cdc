"""The core process from its first line to its last."""

import ctypes
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import setproctitle

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import BLOCK_TOKENS
from pagefleet_api.start_phase import StartPhase
from pagefleet_engine.core.channel import ChannelClosed, CoreChannel
from pagefleet_engine.core.loop import HEARTBEAT_INTERVAL_S, CoreLoop
from pagefleet_engine.scheduler.admission import Capacity, answer_room
from pagefleet_engine.scheduler.batching import NOBODY, Scheduler
from pagefleet_engine.scheduler.pace import Pace
from pagefleet_engine.scheduler.policies import POLICIES
from pagefleet_engine.steps import Runner, RunnerBroken, Sampling, execute
from pagefleet_engine.wire import CoreFailed, CoreReady, StepReport, Submit

PROCESS_TITLE = "pagefleet-engine: core"
BATCHED_TOKENS_CUDA, BATCHED_TOKENS_CPU = 8192, 512
ITL_GOAL_CUDA_MS = 50
"""At 256 clients with prompts of 1,024 tokens and answers of 128 on an H200, less would let prompts wait: in a step
of 50 ms fit about 215 decodes and the prompt tokens that make up for those who finish."""
FIRST_PROMPT_TOKENS = 4
FIRST_ANSWER_TOKENS = 2
_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


class LoadedRunner(NamedTuple):
    """A runner with its weights and KV memory in place, and what the API process must know of it.

    `max_model_len` is the model's window, already cut to `Launch.max_model_len`; `device` is "cpu", "cuda…" or
    "paced"; `memory_bytes` is keyed as the metric `memory_bytes{kind}`; `phase_s` has what came before the first token.
    """

    runner: Runner
    max_model_len: int
    dtype: str
    device: str
    memory_bytes: dict[str, int]
    phase_s: dict[StartPhase, float]
    vocab_size: int


class StartImpossible(Exception):
    """Model, flags and machine do not go together; the message is all that the user needs."""


def serve_core(socket_path: str, launch: Launch, load_runner: Callable[[Launch], LoadedRunner]) -> None:
    """Load, produce a first token, serve until the API process closes the socket.

    Call it from the process's main thread, once. Raises SystemExit(1) when the model cannot be loaded or
    the runner breaks; the API process has then been told why by `CoreFailed`.
    """
    _belong_to_the_api_process()
    try:
        channel = CoreChannel.connect(socket_path)
    except ChannelClosed as error:
        log.error("core_unwanted", extra={"reason": str(error)})
        raise SystemExit(1) from error
    try:
        _serve(channel, launch, load_runner)
    except ChannelClosed as error:
        log.info("core_ended", extra={"reason": str(error)})
    except StartImpossible as error:
        log.error("core_failed", extra={"reason": str(error)})
        _tell_failure(channel, str(error))
        raise SystemExit(1) from error
    except Exception as error:
        log.exception("core_failed")
        _tell_failure(channel, str(error) or type(error).__name__)
        raise SystemExit(1) from error
    finally:
        channel.close()


def _serve(channel: CoreChannel, launch: Launch, load_runner: Callable[[Launch], LoadedRunner]) -> None:
    with _heartbeats(channel):
        loaded = load_runner(launch)
        capacity = Capacity(loaded.max_model_len, loaded.runner.num_blocks, loaded.vocab_size)
        begin = time.monotonic()
        make_first_tokens(loaded.runner, capacity)
        warmup_s = time.monotonic() - begin
        # What lives now lives as long as the process: later collections need not walk through it.
        # The first one takes a fifth of a second, which is not the first request's to wait for.
        gc.collect()
        gc.freeze()
    channel.send(
        CoreReady(
            max_model_len=loaded.max_model_len,
            max_num_seqs=launch.max_num_seqs,
            block_size=BLOCK_TOKENS,
            num_blocks=loaded.runner.num_blocks,
            dtype=loaded.dtype,
            device=loaded.device,
            memory_bytes=loaded.memory_bytes,
            startup_phase_s={**loaded.phase_s, StartPhase.WARMUP: warmup_s},
        )
    )
    serving_loop(channel, launch, loaded).run()


def serving_loop(channel: CoreChannel, launch: Launch, loaded: LoadedRunner) -> CoreLoop:
    """The loop that serves this launch with a loaded runner; its scheduler's books are empty."""
    scheduler = Scheduler(
        Capacity(loaded.max_model_len, loaded.runner.num_blocks, loaded.vocab_size),
        launch.max_num_seqs,
        batched_tokens(launch, loaded.device),
        prefix_cache=launch.prefix_cache,
        pace=pace(launch, loaded.device),
        policy=POLICIES[launch.scheduling_policy],
    )
    return CoreLoop(channel, scheduler, loaded.runner)


def batched_tokens(launch: Launch, device: str) -> int:
    """Tokens that one step may compute: what the launch says, else what suits the device."""
    default = BATCHED_TOKENS_CPU if device == "cpu" else BATCHED_TOKENS_CUDA
    return launch.max_num_batched_tokens or default


def pace(launch: Launch, device: str) -> Pace | None:
    """What holds steps to the goal for the time between two tokens: the launch's, else what suits the device."""
    goal_ms = itl_goal_ms(launch, device)
    return None if goal_ms is None else Pace(goal_ms / 1000)


def itl_goal_ms(launch: Launch, device: str) -> int | None:
    """Milliseconds between two tokens: what the launch says (0: no goal), else what suits the device."""
    if launch.itl_goal_ms is None:
        return None if device == "cpu" else ITL_GOAL_CUDA_MS
    return launch.itl_goal_ms or None


def make_first_tokens(runner: Runner, capacity: Capacity) -> None:
    """Prefill and decode a few tokens through a scheduler of their own; raises `RunnerBroken`.

    The scheduler that serves starts with empty books afterwards, so nothing of this can be found again.
    """
    prompt_tokens = min(FIRST_PROMPT_TOKENS, max(capacity.window_tokens - 1, 1))
    max_tokens = min(FIRST_ANSWER_TOKENS, answer_room(prompt_tokens, capacity.window_tokens))
    scheduler = Scheduler(capacity, max_num_seqs=1, max_num_batched_tokens=prompt_tokens)
    scheduler.submit(
        Submit(
            request_id=NOBODY,
            prompt_token_ids=tuple(index % capacity.vocab_size for index in range(prompt_tokens)),
            max_tokens=max_tokens,
            sampling=Sampling(seed=0, temperature=0.0),
        )
    )
    while (plan := scheduler.schedule()) is not None:
        scheduler.complete(plan, execute(runner, plan))
    for event in scheduler.drain_events():
        if event.error is not None:
            raise RunnerBroken(f"no first token: {event.error}")


@contextmanager
def _heartbeats(channel: CoreChannel) -> Iterator[None]:
    """Tell the API process that this process lives, while its main thread is busy loading."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_INTERVAL_S):
            try:
                channel.send(StepReport())
            except ChannelClosed:
                # Nobody waits for this model any more, and loading cannot be interrupted.
                os._exit(0)

    thread = threading.Thread(target=beat, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _belong_to_the_api_process() -> None:
    """Live and end by the API process's word: it decides about signals, and takes the core with it.

    The kernel sends the death signal when the *thread* that started this process ends, so the API process
    must start it from a thread that lives as long as itself.
    """
    setproctitle.setproctitle(PROCESS_TITLE)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        log.warning("no_parent_death_signal", extra={"errno": ctypes.get_errno()})


def _tell_failure(channel: CoreChannel, message: str) -> None:
    try:
        channel.send(CoreFailed(message))
    except ChannelClosed:
        log.info("failure_unheard")
