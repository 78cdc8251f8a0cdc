"""The first process of a node: mounts, then containerd, kube-proxy and kubelet; reaps whatever is orphaned.

Started by path with a specification file, inside fresh mount, pid, network and UTS namespaces. It waits for a line on
its standard input: the host connects the network from outside. A program that ends is started again, as a service
manager does on any other node: a kubelet gives up, for one, when containerd listens and is not ready yet. When one
ends too often, the node ends.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Spec = Mapping[str, Any]
POLL_S = 0.05


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


# the kubelet would set these for the whole machine: it finds them set, in files of the node's own
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def hide_kernel_settings() -> None:
    for name, value in KERNEL_SETTINGS.items():
        fake = Path("/run", name.replace("/", "."))
        fake.write_text(f"{value}\n")
        mount("--bind", str(fake), f"/proc/sys/{name}")


def add_folders_below(folder: str) -> None:
    """New folders may be made in `folder` without the host seeing them."""
    upper, work = (Path("/run", f"{Path(folder).name}-{part}") for part in ("upper", "work"))
    upper.mkdir()
    work.mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", folder)


def mount_all(binds: Mapping[str, str]) -> None:
    """A private /proc and /run, and the node's own folders over the host's (`binds`: target → source)."""
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "tmpfs", "/run")
    Path("/run/cni-addresses").mkdir()
    hide_kernel_settings()
    add_folders_below("/var/lib")
    for target, source in binds.items():
        for end in (source, target):
            Path(end).mkdir(parents=True, exist_ok=True)
        mount("--bind", source, target)
    mount("--make-rshared", "/")  # volumes mounted by the kubelet must reach containers


def answers(path: str) -> bool:
    """Whether somebody listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
        return True


class Patience(NamedTuple):
    """How often a program may end before its node does."""

    restarts: int = 5
    pause_s: float = 1.0
    steady_s: float = 60.0
    """Whoever ran that long has all its restarts again."""


PATIENCE = Patience()


@dataclass(slots=True)
class Program:
    """One of the node's programs; it is started whenever the socket `needs` answers and it does not run."""

    name: str
    argv: Sequence[str]
    needs: str | None = None
    pid: int | None = None
    started_s: float = 0.0
    due_s: float = 0.0
    failures: int = 0

    def may_start(self, now_s: float) -> bool:
        return self.pid is None and now_s >= self.due_s and (self.needs is None or answers(self.needs))

    def start(self, now_s: float, logs: str) -> None:
        log = os.open(Path(logs, f"{self.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        try:  # it must not inherit that we hold signals back
            self.pid = os.posix_spawnp(self.argv[0], list(self.argv), os.environ, file_actions=actions, setsigmask=())
        finally:
            os.close(log)
            os.close(null)
        self.started_s = now_s

    def ended(self, now_s: float, patience: Patience) -> bool:
        """Note that it ended; whether it will be started again."""
        self.failures = 1 if now_s - self.started_s >= patience.steady_s else self.failures + 1
        self.pid, self.due_s = None, now_s + patience.pause_s
        return self.failures <= patience.restarts


def ended_children() -> Iterator[tuple[int, int]]:
    """(pid, exit status) of every child that has ended, orphans that became ours among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def supervise(programs: Sequence[Program], logs: str, patience: Patience = PATIENCE) -> None:
    """Keep the programs running; returns when one of them ended too often. What happens is printed."""
    children = {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, children)  # held back, so that none is missed before we wait for it
    while True:
        now_s = time.monotonic()
        for program in programs:
            if program.may_start(now_s):
                program.start(now_s, logs)
        running = {program.pid: program for program in programs if program.pid is not None}
        signal.sigtimedwait(children, 3600 if len(running) == len(programs) else POLL_S)
        for pid, status in ended_children():
            if (ended := running.get(pid)) is not None:
                now_s = time.monotonic()
                print(f"{ended.name} ended with status {status} after {now_s - ended.started_s:.1f} s", flush=True)
                if not ended.ended(now_s, patience):
                    print(f"{ended.name} ended {ended.failures} times: the node ends", flush=True)
                    return


def main(spec: Spec) -> int:
    socket.sethostname(spec["hostname"])
    mount_all(spec["binds"])
    if sys.stdin.readline() != "connected\n":
        return 1
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    os.environ["PATH"] = os.pathsep.join((spec["programs"], os.environ["PATH"]))  # containerd finds its shim by it too
    supervise([Program(name, argv, spec["needs"].get(name)) for name, argv in spec["commands"].items()], spec["logs"])
    return 1


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
