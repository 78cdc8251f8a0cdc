"""Where a box lives: its addresses, ports and names, and its folders. Pure values."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

MAX_NODES = 3
PORTS = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, addresses and ports of one box; boxes with different layouts run side by side.

    `bridge` is the host's network interface that the nodes hang on. Without one there are no nodes, everything
    listens on the loopback address and nothing needs root. Networks are written as their leading octets; PORTS ports
    from `first_port` on are used.
    """

    bridge: str | None = "pagefleet0"
    node_network: str = "10.200.0"
    pod_network: str = "10.201"
    service_network: str = "10.96"
    first_port: int = 16440

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The inverse of `dump`; ValueError or TypeError when the text is something else."""
        return cls(**json.loads(text))

    @property
    def host_address(self) -> str:
        """The host as nodes and pods reach it."""
        return "127.0.0.1" if self.bridge is None else f"{self.node_network}.1"

    @property
    def api_port(self) -> int:
        return self.first_port

    @property
    def etcd_port(self) -> int:
        return self.first_port + 1

    @property
    def etcd_peer_port(self) -> int:
        return self.first_port + 2

    @property
    def controllers_port(self) -> int:
        return self.first_port + 3

    @property
    def scheduler_port(self) -> int:
        return self.first_port + 4

    @property
    def dns_ready_port(self) -> int:
        return self.first_port + 5

    @property
    def api_url(self) -> str:
        return f"https://{self.host_address}:{self.api_port}"

    @property
    def service_cidr(self) -> str:
        return f"{self.service_network}.0.0/16"

    @property
    def api_service_address(self) -> str:
        return f"{self.service_network}.0.1"

    @property
    def dns_service_address(self) -> str:
        return f"{self.service_network}.0.10"

    @property
    def pods_cidr(self) -> str:
        return f"{self.pod_network}.0.0/16"

    @property
    def cgroup(self) -> str:
        """The control group that holds every container of the box, below each hierarchy's root."""
        return self.bridge or "pagefleet"

    def node(self, name: str) -> "NodeLayout":
        """The node called `node1` … `node3`; KeyError for any other name."""
        numbers = {f"node{number}": number for number in range(1, MAX_NODES + 1)}
        return NodeLayout(self, numbers[name])


class NodeLayout(NamedTuple):
    """What is a node's own in a layout."""

    box: Layout
    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def address(self) -> str:
        return f"{self.box.node_network}.{10 + self.number}"

    @property
    def pod_cidr(self) -> str:
        return f"{self.box.pod_network}.{self.number}.0/24"

    @property
    def host_interface(self) -> str:
        """The host's end of the node's cable; 15 characters is all that the kernel takes."""
        return f"{self.box.cgroup[:12]}-n{self.number}"

    @property
    def cgroup(self) -> str:
        return f"{self.box.cgroup}/{self.name}"

    @property
    def neighbours(self) -> tuple["NodeLayout", ...]:
        return tuple(NodeLayout(self.box, n) for n in range(1, MAX_NODES + 1) if n != self.number)


CLUSTER = Layout()
API_SERVER_ONLY = Layout(bridge=None, first_port=16460)
SELF_TEST = Layout("pagefleet9", "10.204.0", "10.205", "10.97", 16480)
STEADY = Layout("pagefleet8", "10.206.0", "10.207", "10.98", 16500)
SCALE_DOWNS = Layout("pagefleet7", "10.208.0", "10.209", "10.99", 16520)
IMAGE_VOLUMES = Layout("pagefleet6", "10.210.0", "10.211", "10.100", 16540)


class Folders(NamedTuple):
    """A box's state on disk; `root` is absolute and is all that `down` deletes."""

    root: Path

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def processes(self) -> Path:
        return self.root / "processes"

    @property
    def layout(self) -> Path:
        return self.root / "layout.json"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    def kubeconfig(self, user: str) -> Path:
        return self.root / "kubeconfig" / user

    def node(self, name: str) -> Path:
        return self.root / name
