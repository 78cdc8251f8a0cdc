"""Starts a real API process for a test and speaks to it over HTTP."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[3]
MODEL = "tiny"
FAKE_CORE = "tests.pagefleet_engine.server.fake_core"
START_S = 90.0


@dataclass
class EngineProcess:
    """One engine; `port` and `admin_port` are known once it listens."""

    process: subprocess.Popen[str]
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = 0
        self.admin_port: int | None = None
        self._listening = threading.Event()
        self.http = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None))
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"event": "stderr", "text": line.rstrip()}
            self.events.append(event)
            if event["event"] == "listening":
                self.port, self.admin_port = event["port"], event["admin_port"]
                self._listening.set()
        self._listening.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port or self.port}"

    def wait_listening(self) -> None:
        assert self._listening.wait(START_S) and self.port, self.events

    def wait_ready(self) -> None:
        self.wait_listening()
        wait_until(lambda: self.http.get(f"{self.admin}/readyz").status_code == 200, START_S, self.events)

    def load(self) -> dict[str, Any]:
        return dict(self.http.get(f"{self.admin}/load").json())

    def idle(self) -> bool:
        load = self.load()
        return (load["running"], load["waiting"]) == (0, 0)

    def metric(self, series: str) -> float:
        """The value of the series whose text begins with `series`; labels as they are written."""
        for line in self.http.get(f"{self.admin}/metrics").text.splitlines():
            if line.startswith(series) and not line.startswith("#"):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(series)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def core_pid(self) -> int:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        [pid] = [int(word) for word in text.split()]
        return pid

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"{self.url}/v1/{path}", json=body)

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        return self.post("chat/completions", messages=[{"role": "user", "content": text}], **fields)

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        return self.post("completions", prompt=prompt, **fields)


def wait_until(true: Any, limit_s: float, shown: Any = None) -> float:
    """Poll until `true()`; gives the seconds it took."""
    begin = time.monotonic()
    while True:
        try:
            if true():
                return time.monotonic() - begin
        except httpx.TransportError:
            pass
        assert time.monotonic() - begin < limit_s, shown
        time.sleep(0.02)


@contextmanager
def engine(
    model: Path | str, *flags: str, fake: dict[str, Any] | None = None, ready: bool = True, **environment: str
) -> Iterator[EngineProcess]:
    """An engine on free ports with its own admin port; with `fake`, the fake core plays that script."""
    uri = model if isinstance(model, str) else f"file://{model}"
    core = repr(FAKE_CORE) if fake is not None else ""
    start = f"from pagefleet_engine.__main__ import main; main({core})"
    ports = [] if "--port" in flags else ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    paths = os.pathsep.join(str(ROOT / part) for part in ("crds", "engine_image", "."))
    process = subprocess.Popen(
        [sys.executable, "-c", start, "--model", uri, "--served-model-name", MODEL, *ports, *flags],
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "FAKE_CORE": json.dumps(fake or {}),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = EngineProcess(process)
    try:
        if ready:
            running.wait_ready()
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
