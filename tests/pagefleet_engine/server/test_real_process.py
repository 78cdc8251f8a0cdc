"""The real engine's two processes through drains, kills and hangs."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pagefleet_engine.api.health import HEARTBEAT_BOUND_S
from pagefleet_engine.models.config_files import read_config
from pagefleet_engine.models.source import resolve
from pagefleet_engine.models.tensor_names import expected_shapes
from tests.pagefleet_engine.adapter_folders import write_adapter
from tests.pagefleet_engine.server.engine_process import engine, wait_until
from tests.pagefleet_engine.server.inside import sse
from tests.pagefleet_engine.tiny_model import TinyShape, write_tiny_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
ENDLESS: dict[str, Any] = {"prompt": "abc", "stream": True, "max_tokens": 30_000, "ignore_eos": True}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose window takes minutes to fill."""
    return write_tiny_model(tmp_path_factory.mktemp("wide"), TinyShape(max_positions=32_768))


def test_a_drain_lets_streams_whole_answers_and_queued_ones_finish(wide: Path) -> None:
    with engine(wide, "--max-num-seqs", "4", "--drain-timeout-s", "100") as running, ThreadPoolExecutor() as pool:
        ask = {"prompt": "abc", "ignore_eos": True, "max_tokens": 100}
        streams = [pool.submit(running.complete, stream=True, **ask) for _ in range(3)]
        whole = pool.submit(running.complete, **ask)
        wait_until(lambda: running.load()["running"] == 4, 10)
        queued = pool.submit(running.complete, **ask)
        wait_until(lambda: running.load()["running"] + running.load()["waiting"] == 5, 5)
        begin = time.monotonic()
        running.signal(signal.SIGTERM)
        wait_until(lambda: running.http.get(f"{running.admin}/readyz").status_code == 503, 1)
        assert all(sse(future.result().text)[-1] == "[DONE]" for future in streams)
        assert whole.result().json()["usage"]["completion_tokens"] == 100
        assert queued.result().status_code == 200
        assert running.process.wait(15) == 0
        assert 4.9 < time.monotonic() - begin < 100


def test_adapters_answer_beside_the_model_itself_and_share_no_prefix_with_it(wide: Path, tmp_path: Path) -> None:
    shapes = expected_shapes(read_config(resolve(f"file://{wide}")))
    flags = list[str]()
    for seed, name in enumerate(("one", "two")):
        folder = write_adapter(tmp_path / name, shapes, ("q_proj", "v_proj", "down_proj"), seed=seed, gain=3.0)
        flags += ["--adapter", f"{name}={folder}"]
    ask = {"prompt": "a prompt of some blocks " * 4, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    with engine(wide, *flags) as running, ThreadPoolExecutor() as pool:
        names = ("tiny", "one", "two") * 2
        together = [pool.submit(running.complete, model=name, **ask) for name in names]
        answers = [answer.result().json() for answer in together]
        texts = [answer["choices"][0]["text"] for answer in answers]
        assert texts[:3] == texts[3:]
        assert len(set(texts)) == 3
        again = [running.complete(model=name, **ask).json() for name in names[:3]]
        assert [answer["choices"][0]["text"] for answer in again] == texts[:3]
        assert all(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in again)
        told = running.http.get(f"{running.admin}/metrics").text
        assert [f'adapter="{name}",model_name="tiny",rank="4"' in told for name in names[:3]] == [False, True, True]
        assert 'running_lora_adapters="one,two"' in told
        sizes = [running.metric(f'pagefleet_memory_bytes{{kind="{kind}"') for kind in ("process", "weights", "kv")]
        assert sizes[0] > sizes[1] + sizes[2]


def test_a_drain_timeout_ends_streams_with_an_error_event_and_exits_0_in_time(wide: Path) -> None:
    with engine(wide, "--drain-timeout-s", "1") as running, ThreadPoolExecutor() as pool:
        core = running.core_pid()
        streams = [pool.submit(running.complete, **ENDLESS) for _ in range(3)]
        wait_until(lambda: running.load()["running"] == 3, 10)
        begin = time.monotonic()
        running.signal(signal.SIGTERM)
        assert [sse(future.result().text)[-1]["error"]["code"] for future in streams] == ["shutting_down"] * 3
        assert running.process.wait(5) == 0
        assert 0.9 < time.monotonic() - begin < 3
        assert not Path(f"/proc/{core}").exists()


def test_a_killed_core_ends_streams_with_an_error_event_and_the_process_with_status_1(wide: Path) -> None:
    with engine(wide) as running, ThreadPoolExecutor() as pool:
        stream = pool.submit(running.complete, **ENDLESS)
        wait_until(lambda: running.load()["running"] == 1, 10)
        os.kill(running.core_pid(), signal.SIGKILL)
        assert sse(stream.result(5).text)[-1]["error"]["code"] == "engine_failed"
        assert running.process.wait(5) == 1


def test_a_stopped_core_is_unhealthy_in_time_well_again_when_it_goes_on_and_never_blocks_the_end(wide: Path) -> None:
    with engine(wide) as running, ThreadPoolExecutor() as pool:
        core = running.core_pid()
        stream = pool.submit(running.complete, **ENDLESS)
        wait_until(lambda: running.load()["running"] == 1, 10)
        os.kill(core, signal.SIGSTOP)
        took_s = wait_until(lambda: running.http.get(f"{running.admin}/healthz").status_code == 503, 20)
        assert HEARTBEAT_BOUND_S / 2 < took_s < HEARTBEAT_BOUND_S + 2
        assert running.http.get(f"{running.admin}/readyz").status_code == 503
        os.kill(core, signal.SIGCONT)
        wait_until(lambda: running.http.get(f"{running.admin}/healthz").status_code == 200, 5)
        os.kill(core, signal.SIGSTOP)
        running.signal(signal.SIGTERM)
        # Two signals in a row may reach the process as one.
        wait_until(lambda: running.load()["state"] == "draining", 5)
        running.signal(signal.SIGTERM)
        assert sse(stream.result(5).text)[-1]["error"]["code"] == "shutting_down"
        assert running.process.wait(5) == 0
        assert not Path(f"/proc/{core}").exists()


def test_a_core_whose_api_process_is_killed_goes_too(wide: Path) -> None:
    with engine(wide) as running:
        core = running.core_pid()
        running.process.kill()
        wait_until(lambda: not Path(f"/proc/{core}").exists(), 5)
