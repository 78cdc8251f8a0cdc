"""One node: its files, its start, its end."""

import json
import os
import sys
import time
from pathlib import Path

from e2e.cluster import arguments, configuration, host
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import Folders, NodeLayout
from e2e.cluster.processes import Processes, children


def specification(node: NodeLayout, folders: Folders, hyperkube: Path) -> configuration.Json:
    """What `node_init` reads. Pure."""
    home = folders.node(node.name)
    return {
        "hostname": node.name,
        "binds": {
            "/var/log": f"{home}/log",
            "/var/lib/cni": f"{home}/cni",
            "/var/lib/kubelet": f"{home}/kubelet",
        },
        "commands": {
            f"{node.name}-containerd": ["containerd", "--config", f"{home}/containerd.toml"],
            f"{node.name}-kube-proxy": [str(hyperkube), *arguments.kube_proxy(node, folders)],
            f"{node.name}-kubelet": [str(hyperkube), *arguments.kubelet(node, folders)],
        },
        "programs": str(hyperkube.parent),
        "needs": {f"{node.name}-kubelet": configuration.CONTAINERD_SOCKET},
        "logs": str(folders.log),
    }


def write_files(node: NodeLayout, folders: Folders, hyperkube: Path) -> Path:
    """Every file that the node reads; the path of its specification."""
    home = folders.node(node.name)
    (home / "cni.d").mkdir(parents=True, exist_ok=True)
    (home / "containerd.toml").write_text(configuration.containerd(node, folders))
    (home / "cni.d" / "10-box.conflist").write_text(json.dumps(configuration.pod_network(node)))
    (home / "kubelet.json").write_text(json.dumps(configuration.kubelet(node, folders)))
    (home / "resolv.conf").write_text(f"nameserver {node.box.host_address}\n")
    path = home / "specification.json"
    path.write_text(json.dumps(specification(node, folders, hyperkube)))
    return path


def allow_plain_registry(node: NodeLayout, folders: Folders, registry: str) -> None:
    """Let the node pull from `registry` (host:port) over plain HTTP, as an administrator would; from now on."""
    folder = folders.node(node.name) / "registries" / registry
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.toml").write_text(configuration.plain_registry(registry))


def init_pid(node: NodeLayout, processes: Processes) -> int | None:
    """The process that is number 1 inside the node, as the host numbers it; None while the node is down."""
    outer = processes.running(node.name)
    inner = children(outer.pid) if outer else []
    return inner[0] if inner else None


def start(node: NodeLayout, folders: Folders, processes: Processes, hyperkube: Path) -> None:
    """Start the node and connect it; it registers itself with the API server a few seconds later."""
    spec = write_files(node, folders, hyperkube)
    host.create_cgroup(node.cgroup)
    init = [sys.executable, "-I", str(Path(__file__).with_name("node_init.py")), str(spec)]
    readable, writable = os.pipe()
    try:
        processes.start(node.name, arguments.namespaces(init), stdin=readable)
        host.connect_node(node, _wait_for_namespace(node, processes))
        os.write(writable, b"connected\n")
    except BaseException:
        processes.kill(node.name)
        raise
    finally:
        os.close(readable)
        os.close(writable)


def _wait_for_namespace(node: NodeLayout, processes: Processes) -> int:
    ours = Path("/proc/self/ns/net").readlink()
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        pid = init_pid(node, processes)
        if pid is not None and Path(f"/proc/{pid}/ns/net").readlink() != ours:
            return pid
        time.sleep(0.02)
    raise BoxError(f"{node.name} does not start:\n{processes.log_tail(node.name)}")


def stop(node: NodeLayout, processes: Processes) -> None:
    """As if the machine lost its power: every process in the node dies at once."""
    processes.kill(node.name)


def explain(node: NodeLayout, processes: Processes) -> str:
    """The last words of each of the node's programs."""
    names = [node.name, *(f"{node.name}-{program}" for program in ("containerd", "kube-proxy", "kubelet"))]
    return "\n".join(f"--- {name}\n{processes.log_tail(name)}" for name in names)
