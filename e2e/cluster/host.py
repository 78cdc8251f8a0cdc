"""What a box adds to its host, and how each of it is taken away again: interfaces, routes, control groups."""

import contextlib
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.errors import BoxError
from e2e.cluster.layout import PORTS, Layout, NodeLayout

CGROUPS = Path("/sys/fs/cgroup")


def run(*argv: str, stdin: str | None = None) -> str:
    """The output of a short command; BoxError with its own words when it fails."""
    try:
        result = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BoxError(f"{argv[0]} is missing: run `python -m e2e.cluster prepare`") from error
    if result.returncode:
        raise BoxError(f"{' '.join(argv)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def require_root() -> None:
    if os.geteuid() != 0:
        raise BoxError("nodes need root (namespaces, interfaces, control groups): run this as root")


def interface_exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def delete_interface(name: str) -> None:
    """Gone afterwards; the end of a namespace may take it away in the same moment."""
    try:
        if interface_exists(name):
            run("ip", "link", "delete", name)
    except BoxError:
        if interface_exists(name):
            raise


def bridge_owner(layout: Layout) -> Path | None:
    """The state folder of the box that made the bridge; None where there is no bridge or nobody's name on it."""
    try:
        owner = Path("/sys/class/net", str(layout.bridge), "ifalias").read_text().strip()
    except OSError:
        return None
    return Path(owner) if owner else None


def connect_bridge(layout: Layout, owner: Path) -> None:
    """The bridge, with the name of its owner's state folder on it."""
    if layout.bridge is None:
        return
    if not interface_exists(layout.bridge):
        run("ip", "link", "add", layout.bridge, "type", "bridge")
    run("ip", "link", "set", "dev", layout.bridge, "alias", str(owner))
    run("ip", "address", "replace", f"{layout.host_address}/24", "dev", layout.bridge)
    run("ip", "link", "set", layout.bridge, "up")


def connect_node(node: NodeLayout, pid: int) -> None:
    """A cable between the bridge and the network namespace of `pid`, with routes both ways.

    The host's packet filter stays empty: the host reaches Services through the first node, whose kube-proxy
    translates them.
    """
    box, cable = node.box, node.host_interface
    delete_interface(cable)
    run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", cable, "master", str(box.bridge), "up")
    inside = [
        "link set lo up",
        f"address add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {box.host_address}",
        *(f"route add {other.pod_cidr} via {other.address}" for other in node.neighbours),
    ]
    run("nsenter", "--target", str(pid), "--net", "ip", "-batch", "-", stdin="\n".join(inside) + "\n")
    _route(node.pod_cidr, node.address, str(box.bridge))
    if node.number == 1:
        _route(box.service_cidr, node.address, str(box.bridge))


def _route(network: str, gateway: str, interface: str) -> None:
    """A route to `network`; BoxError when the host reaches it in another way already (a VPN, say)."""
    known = json.loads(run("ip", "-json", "route", "show", "exact", network) or "[]")
    foreign = [route["dev"] for route in known if route.get("dev") != interface]
    if foreign:
        raise BoxError(f"this host has a route to {network} through {foreign[0]}: the cluster needs that network")
    run("ip", "route", "replace", network, "via", gateway, "dev", interface)


def disconnect(layout: Layout) -> None:
    """Removes the cables and the bridge; their routes go with them."""
    if layout.bridge is None:
        return
    cables = [path.name for path in Path("/sys/class/net").glob(f"{layout.bridge[:12]}-n*")]
    for interface in (*cables, layout.bridge):
        delete_interface(interface)


def hierarchies() -> list[Path]:
    """The roots below which a container's control group is made: one for each v1 controller, or the one of v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in sorted(CGROUPS.iterdir()) if path.is_dir() and path.name != "unified"]


def create_cgroup(name: str) -> None:
    """The group `name` (with its parents) in every hierarchy, with all processors and memory nodes."""
    for root in hierarchies():
        parent = root
        for part in Path(name).parts:
            _delegate(parent)
            group = parent / part
            group.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (parent / "tasks").exists() and (group / file).exists():
                    (group / file).write_text((parent / file).read_text())
            parent = group
        _delegate(parent)


def _delegate(group: Path) -> None:
    """In v2 a group hands each controller down by name; in v1 there is nothing to do."""
    controllers = group / "cgroup.controllers"
    if controllers.exists():
        wanted = " ".join(f"+{name}" for name in controllers.read_text().split())
        (group / "cgroup.subtree_control").write_text(wanted)


def _groups(name: str) -> Iterator[Path]:
    # beside the hierarchies that limit something, the runtime makes the same groups in a hybrid's second one
    for root in dict.fromkeys([*hierarchies(), *(path for path in CGROUPS.iterdir() if path.is_dir())]):
        for folder, _, _ in os.walk(root / name, topdown=False):
            yield Path(folder)


def remove_cgroup(name: str, timeout_s: float = 10.0) -> None:
    """Removes the group and all below it; waits for the last processes in it to be gone."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        for group in _groups(name):
            try:
                group.rmdir()
            except OSError:
                continue
        left = list(_groups(name))
        if not left:
            return
        if time.monotonic() > deadline_s:
            raise BoxError(f"control group {left[0]} is still in use")
        time.sleep(0.05)


def unused_first_port() -> int:
    """The start of a run of ports that nobody listens on: for a box on the loopback address beside others."""
    candidates = range(17000, 30000, 10)
    for first in random.sample(candidates, len(candidates)):  # two that look at once rarely meet
        with contextlib.ExitStack() as sockets, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise BoxError("no run of unused ports is left")
