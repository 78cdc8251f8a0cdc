"""The engine as its users start it, on the loopback address, and what its processes cost."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bench.engine.results import WorkFailed

HOST = "127.0.0.1"
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 20
POLL_S = 0.05
IDLE_TIMEOUT_S, IDLE_WINDOW_S, IDLE_SHARE = 20.0, 0.4, 0.25
"""A core that uses less than a quarter of a processor has nothing left to prepare."""
_LOG_TAIL_CHARS = 3000
_TICKS_S = os.sysconf("SC_CLK_TCK")
_CORE_WORDS = ("core_process", "pagefleet-engine: core")


class CpuSeconds(NamedTuple):
    """Processor time so far, user and system."""

    api: float
    core: float


class Server:
    """One engine: started by `with`, stopped by its process id whatever happens."""

    def __init__(self, launch_argv: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        with socket.socket() as found:
            found.bind((HOST, 0))
            port = found.getsockname()[1]
        self.url = f"http://{HOST}:{port}"
        self.ready_s = 0.0
        """Seconds from the start to the first success of /readyz."""
        self._log = log
        own = ["--served-model-name", "peer", "--host", HOST, "--port", str(port)]
        self._command = [sys.executable, "-m", "pagefleet_engine", *launch_argv, *own]
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> "Server":
        self.began_s = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=self._environment, stdin=subprocess.DEVNULL
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_ready(self) -> None:
        while (waited_s := time.perf_counter() - self.began_s) < START_TIMEOUT_S:
            if self._process.poll() is not None:
                raise WorkFailed(f"the engine ended with status {self._process.returncode}: {self.log_tail()}")
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=2):
                    self.ready_s = time.perf_counter() - self.began_s
                    return
            except (OSError, urllib.error.HTTPError):
                time.sleep(POLL_S)
        raise WorkFailed(f"the engine was not ready after {waited_s:.0f} s: {self.log_tail()}")

    def _stop(self) -> None:
        """SIGTERM twice, which cuts the drain short as nothing runs any more; then SIGKILL."""
        for _ in range(2):
            self._process.terminate()
            time.sleep(POLL_S)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_idle(self) -> float:
        """Wait, for a bounded time, until the core has done what it does after its start; seconds waited.

        Compilers that it runs count, also those that have ended.
        """
        began_s, before = time.perf_counter(), self._all_cpu_s()
        while (waited_s := time.perf_counter() - began_s) < IDLE_TIMEOUT_S:
            time.sleep(IDLE_WINDOW_S)
            now = self._all_cpu_s()
            if now - before < IDLE_WINDOW_S * IDLE_SHARE:
                break
            before = now
        return waited_s

    def _all_cpu_s(self) -> float:
        return sum(process_cpu_s(pid, children=True) for pid in descendants(self._process.pid))

    def log_tail(self) -> str:
        """The end of what the engine logged."""
        return self._log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]

    def get(self, path: str) -> str:
        """The body of a GET."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def counter(self, name: str) -> float:
        """A counter of /metrics, summed over its labels, whatever its prefix."""
        lines = [line for line in self.get("/metrics").splitlines() if not line.startswith("#")]
        suffix = f"{name}_total"
        found = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if suffix in line}
        named = [value for series, value in found.items() if series.partition("{")[0] == f"vllm:{suffix}"]
        return sum(named or found.values())

    def cpu_s(self) -> CpuSeconds:
        """Processor time of the API processes and of the core."""
        used = {True: 0.0, False: 0.0}
        for pid in descendants(self._process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            used[any(word in words for word in _CORE_WORDS)] += process_cpu_s(pid)
        return CpuSeconds(api=used[False], core=used[True])


def descendants(pid: int) -> list[int]:
    """A process and all below it, as far as they live."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int(_stat(int(folder.name))[1])
            except OSError:
                continue
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found


def process_cpu_s(pid: int, *, children: bool = False) -> float:
    """User and system seconds of one process, and of its children that have ended (man 5 proc_pid_stat)."""
    try:
        fields = _stat(pid)[11 : 15 if children else 13]
    except OSError:
        return 0.0  # it has just ended
    return sum(map(int, fields)) / _TICKS_S


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold blanks and brackets: state, parent, …"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
