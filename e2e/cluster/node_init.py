"""The first process of a node: mounts, then containerd, kube-proxy and kubelet; reaps whatever is orphaned.

Started by path with a specification file, inside fresh mount, pid, network and UTS namespaces. It waits for a line on
its standard input: the host connects the network from outside. When one of the three ends, the node ends.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Spec = Mapping[str, Any]


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


def start(name: str, argv: list[str], logs: str) -> subprocess.Popen[bytes]:
    with Path(logs, f"{name}.log").open("ab") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_for_socket(path: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
            else:
                return
        time.sleep(0.05)


def main(spec: Spec) -> int:
    socket.sethostname(spec["hostname"])
    mount_all(spec["binds"])
    if sys.stdin.readline() != "connected\n":
        return 1
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    running: dict[int, str] = {}
    for name, argv in spec["commands"].items():
        running[start(name, argv, spec["logs"]).pid] = name
        if spec["wait_for"].get(name):
            wait_for_socket(spec["wait_for"][name], 60)
    while True:
        pid, status = os.wait()
        if pid in running:
            print(f"{running[pid]} ended with status {os.waitstatus_to_exitcode(status)}", flush=True)
            return 1


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
