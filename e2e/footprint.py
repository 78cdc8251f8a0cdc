"""What a cluster in a box could leave on its host, to compare before and after."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from e2e.cluster.box import Box
from e2e.cluster.host import run

# what a kubelet would like to have, for the whole machine
_SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
_BOX_PROCESSES = ("hyperkube", "containerd", "containerd-shim-runc-v2", "coredns", "runc", "pause", "prometheus")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Names of everything of a kind on the host, at one moment."""

    processes: frozenset[str]
    mounts: frozenset[str]
    interfaces: frozenset[str]
    routes: frozenset[str]
    namespaces: frozenset[str]
    control_groups: frozenset[str]
    packet_filter: frozenset[str]
    sysctls: frozenset[str]

    @classmethod
    def of_host(cls) -> Self:
        return cls(
            processes=frozenset(_processes()),
            mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
            interfaces=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            routes=frozenset(run("ip", "route", "show", "table", "all").splitlines()),
            namespaces=frozenset(_namespaces()),
            control_groups=frozenset(str(path) for path in Path("/sys/fs/cgroup").glob("*/*") if path.is_dir()),
            packet_filter=frozenset(line.split("[")[0] for line in run("iptables-save").splitlines()),
            sysctls=frozenset(f"{name}={Path('/proc/sys', name).read_text().strip()}" for name in _SYSCTLS),
        )

    def left_behind(self, after: "Footprint") -> list[str]:
        """What is in `after` and was not here, each with its kind."""
        return [
            f"{field.name}: {name}"
            for field in fields(self)
            for name in sorted(getattr(after, field.name) - getattr(self, field.name))
            if not name.startswith("#")
        ]

    def left_by(self, box: Box, after: "Footprint") -> list[str]:
        """The part of it that bears a name or address of `box`: others may come and go on this machine meanwhile."""
        layout = box.layout
        networks = (layout.node_network, layout.pod_network, layout.service_cidr)
        marks = (str(layout.bridge), str(box.folders.root), *networks)
        return [line for line in self.left_behind(after) if any(mark in line for mark in marks)]


def _processes() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it ended meanwhile
            continue
        if Path(words[0]).name in _BOX_PROCESSES:
            yield f"{folder.name} {' '.join(words)[:120]}"


def _namespaces() -> Iterator[str]:
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            yield str(link.readlink())
        except OSError:  # it ended meanwhile
            continue
