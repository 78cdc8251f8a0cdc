"""kubectl as a typed tool: what a user would type, with the answers as values."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Json = dict[str, Any]

_WATCH_AGAIN_S = 0.5


class KubectlError(Exception):
    """kubectl failed; the text is its own."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl for one cluster and namespace. `kubeconfig` is what KUBECONFIG may hold: one path or several."""

    binary: str
    kubeconfig: str
    namespace: str = "default"

    def within(self, namespace: str) -> "Kubectl":
        return replace(self, namespace=namespace)

    def command(self, *argv: str) -> list[str]:
        return [self.binary, f"--namespace={self.namespace}", *argv]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": self.kubeconfig}

    def attempt(self, *argv: str, stdin: str | None = None, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run it; the exit status is the caller's to judge."""
        return subprocess.run(
            self.command(*argv),
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def run(self, *argv: str, stdin: str | None = None, timeout_s: float = 60) -> str:
        """The output.

        Raises:
            KubectlError: it exits with another status than 0.
        """
        result = self.attempt(*argv, stdin=stdin, timeout_s=timeout_s)
        if result.returncode:
            raise KubectlError(f"kubectl {' '.join(argv)}: {result.stderr.strip() or result.stdout.strip()}")
        return result.stdout

    def apply(self, manifest: str) -> str:
        """Apply YAML or JSON text."""
        return self.run("apply", "-f", "-", stdin=manifest)

    def get(self, kind: str, name: str) -> Json | None:
        """One object; None when there is none."""
        text = self.run("get", kind, name, "--ignore-not-found", "-o", "json")
        found: Json | None = json.loads(text) if text.strip() else None
        return found

    def items(self, kind: str, selector: str = "") -> list[Json]:
        """Every object of a kind that carries the labels of `selector`."""
        chosen = [f"--selector={selector}"] if selector else []
        found: list[Json] = json.loads(self.run("get", kind, *chosen, "-o", "json"))["items"]
        return found

    def raw(self, path: str) -> str:
        """A GET of an API path."""
        return self.run("get", "--raw", path)


@contextlib.contextmanager
def followed_logs(kubectl: Kubectl, pods: Iterable[str], folder: Path) -> Iterator[dict[str, Path]]:
    """The whole log of each pod in a file that grows while the context is open, and outlives the pod."""
    files = {pod: folder / f"{pod}.log" for pod in pods}
    with contextlib.ExitStack() as stack:
        for pod, path in files.items():
            log = stack.enter_context(path.open("wb"))
            words = kubectl.command("logs", "--follow", pod)
            process = subprocess.Popen(words, env=kubectl.environment, stdout=log, stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
        yield files


@dataclass(frozen=True, slots=True)
class Seen:
    """An object as it was at a moment of `time.monotonic`."""

    at_s: float
    wall_s: float
    body: Json


class Watch:
    """Every state of some objects from now on, read by `kubectl get --watch` in the background.

    A watch that ends, as the server's own limit or a broken connection makes it, begins anew: without that the last
    state seen would look like the last there was.
    """

    def __init__(self, kubectl: Kubectl, kind: str, *names_or_flags: str) -> None:
        self._command = kubectl.command("get", kind, *names_or_flags, "--watch", "-o", "json")
        self._environment = kubectl.environment
        self._seen: list[Seen] = []
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._process: subprocess.Popen[str]
        self._thread = threading.Thread(target=self._follow, name=f"watch {kind}", daemon=True)

    def __enter__(self) -> "Watch":
        self._process = self._begin()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ending.set()
            self._process.terminate()
        self._thread.join(10)

    @property
    def seen(self) -> list[Seen]:
        with self._changed:
            return list(self._seen)

    def until(self, holds: Callable[[Json], bool], timeout_s: float, since_s: float = 0.0) -> Seen:
        """The first state from `since_s` (`time.monotonic`) on, past ones included, for which `holds` is true.

        Raises:
            TimeoutError: none came in time.
        """
        deadline_s = time.monotonic() + timeout_s
        checked = 0
        with self._changed:
            while True:
                for seen in self._seen[checked:]:
                    if seen.at_s >= since_s and holds(seen.body):
                        return seen
                checked = len(self._seen)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    last = json.dumps(self._seen[-1].body.get("status")) if self._seen else "nothing"
                    raise TimeoutError(f"after {timeout_s:.0f} s the last state is {last}")
                self._changed.wait(left_s)

    def _begin(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def _follow(self) -> None:
        while True:
            with self._process as process:
                self._read(process)
            self._ending.wait(_WATCH_AGAIN_S)
            with self._changed:
                if self._ending.is_set():
                    return
                self._process = self._begin()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None  # it has a pipe
        decoder, text = json.JSONDecoder(), ""
        # a document ends with a brace in the first column
        for line in process.stdout:
            text += line
            if line.startswith("}"):
                body = decoder.decode(text)
                text = ""
                with self._changed:
                    self._seen.append(Seen(time.monotonic(), time.time(), body))
                    self._changed.notify_all()
