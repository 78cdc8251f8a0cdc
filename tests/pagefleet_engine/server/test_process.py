"""The two processes as the kernel sees them: signals, deaths, exit statuses."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.pagefleet_engine.server.engine_process import EngineProcess, engine, wait_until
from tests.pagefleet_engine.server.inside import sse

SECRET = "canary-key"


def streaming(running: EngineProcess, pool: ThreadPoolExecutor) -> "object":
    """A stream of 2 s that has begun."""
    seen = running.metric("pagefleet_generation_tokens_total")
    headers = {"authorization": f"Bearer {SECRET}"}
    body = {"prompt": "abc", "max_tokens": 200, "stream": True}
    future = pool.submit(httpx.post, f"{running.url}/v1/completions", json=body, headers=headers, timeout=30)
    wait_until(lambda: running.metric("pagefleet_generation_tokens_total") > seen, 10)
    return future


def test_a_killed_core_is_told_to_streams_and_ends_the_process_and_keys_stay_out_of_the_core(tiny: Path) -> None:
    with engine(tiny, fake={"step_s": 0.01}, PAGEFLEET_API_KEY_0=SECRET) as running, ThreadPoolExecutor() as pool:
        core = running.core_pid()
        seen = Path(f"/proc/{core}/environ").read_bytes() + Path(f"/proc/{core}/cmdline").read_bytes()
        assert b"--served-model-name" in seen
        assert SECRET.encode() not in seen
        assert running.complete("abc").status_code == 401
        stream = streaming(running, pool)
        os.kill(core, signal.SIGKILL)
        assert sse(stream.result(10).text)[-1]["error"]["code"] == "engine_failed"  # type: ignore[attr-defined]
        assert running.process.wait(5) == 1
        assert not any(SECRET in str(event) for event in running.events)


def run_briefly(*flags: str) -> tuple[int, str]:
    """Exit status and standard error of a start that cannot succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "pagefleet_engine", *flags],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": "crds:engine_image"},
        check=False,
    )
    return done.returncode, done.stderr


def test_a_start_that_cannot_succeed_ends_with_one_line_that_says_why(tiny: Path) -> None:
    status, said = run_briefly("--model", "file:///nowhere")
    assert (status, said.count("\n")) == (1, 1)
    assert "file:///nowhere" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, said = run_briefly("--model", f"file://{tiny}", "--host", "127.0.0.1", "--port", port)
    assert (status, said.count("\n")) == (1, 1)
    assert f"--port: cannot listen on 127.0.0.1:{port}" in said
    assert "give another --port" in said
    status, said = run_briefly("--model", f"file://{tiny}", "--host", "192.0.2.1", "--port", "0")
    assert (status, said.count("\n")) == (1, 1)
    assert "give --host an address of this machine" in said


def test_adapters_that_cannot_be_served_end_the_process_with_one_line_before_anything_is_loaded(
    tiny: Path, tmp_path: Path
) -> None:
    model = ("--model", f"file://{tiny}", "--served-model-name", "llama")
    status, said = run_briefly(*model, "--adapter", f"sql={tmp_path}")
    assert (status, said.count("\n")) == (1, 1)
    assert f"adapter 'sql': there is no {tmp_path}/adapter_config.json; give --adapter sql=PATH" in said
    status, said = run_briefly(*model, "--adapter", f"llama={tmp_path}")
    assert (status, said.count("\n")) == (1, 1)
    assert "--adapter llama: the model itself is served as 'llama'; give the adapter another name" in said


def test_the_api_process_imports_no_torch_and_nothing_slow_before_its_core_starts() -> None:
    program = (
        "import sys; import pagefleet_engine.__main__, pagefleet_engine.api.start;"
        "early = sorted(n for n in ('fastapi', 'uvicorn', 'numpy', 'torch') if n in sys.modules);"
        "import pagefleet_engine.api.server, pagefleet_engine.models.tokenizer;"
        "print(early, 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": "crds:engine_image"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[] False"


def test_a_signal_before_the_server_runs_is_not_lost_and_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    with engine(tiny, fake={}, ready=False, TMPDIR=str(tmp_path)) as running:
        status = Path(f"/proc/{running.process.pid}/status")
        caught = 1 << (signal.SIGTERM - 1)
        wait_until(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & caught, 10)
        running.signal()
        assert running.process.wait(20) == 0
        assert not list(tmp_path.iterdir())


def test_the_end_does_not_wait_for_a_busy_thread() -> None:
    program = (
        "import time; from concurrent.futures import ThreadPoolExecutor; from pagefleet_engine.api import start;"
        "ThreadPoolExecutor().submit(time.sleep, 60); start.leave(3)"
    )
    environment = {**os.environ, "PYTHONPATH": "crds:engine_image"}
    done = subprocess.run([sys.executable, "-c", program], timeout=20, env=environment, check=False)
    assert done.returncode == 3
