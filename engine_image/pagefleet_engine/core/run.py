"""The core process from its first line to its last."""

from collections.abc import Callable
from typing import NamedTuple

from pagefleet_api.launch import Launch

from pagefleet_engine.steps import Runner


class LoadedRunner(NamedTuple):
    """A runner with its weights and KV memory in place, and what the API process must know of it.

    `max_model_len` is the model's window, already cut to `Launch.max_model_len`; `device` is "cpu" or
    "cuda…"; `memory_bytes` and `phase_s` are keyed as the metrics `memory_bytes{kind}` and
    `startup_phase_seconds{phase}`.
    """

    runner: Runner
    max_model_len: int
    dtype: str
    device: str
    memory_bytes: dict[str, int]
    phase_s: dict[str, float]
    vocab_size: int


def serve_core(socket_path: str, launch: Launch, load_runner: Callable[[Launch], LoadedRunner]) -> None:
    """Load, produce a first token, serve until the API process closes the socket.

    Raises SystemExit(1) when the model cannot be loaded or the runner breaks, after `CoreFailed`.
    """
    raise NotImplementedError
