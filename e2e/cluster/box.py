"""A box: a whole cluster on this machine, started and stopped by one process at a time."""

import datetime as dt
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.cluster import control, host, images, node, node_images, oci, pki
from e2e.cluster.binaries import cached_binaries
from e2e.cluster.errors import BoxError
from e2e.cluster.kube import ApiServer
from e2e.cluster.layout import CLUSTER, MAX_NODES, Folders, Layout, NodeLayout
from e2e.cluster.locks import locked
from e2e.cluster.processes import Processes


class Box:
    """The cluster whose state is in one folder. Every call may be made from another process than the one before."""

    def __init__(self, folders: Folders, layout: Layout, binaries: Path | None = None) -> None:
        self.folders, self.layout, self._binaries = folders, layout, binaries
        self.processes = Processes(folders.processes, folders.log)

    @classmethod
    def at(cls, state: Path, layout: Layout = CLUSTER, binaries: Path | None = None) -> "Box":
        """The box below `state` (absolute, made when needed); nothing is started.

        binaries: the folder of its programs (default: the usual ones), before what this machine has by their names.

        Raises:
            BoxError: the path is relative; the nodes' mounts need an absolute one.
        """
        if not state.is_absolute():
            raise BoxError(f"the state folder must be absolute, not {state}")
        return cls(Folders(state / "cluster" if layout.bridge else state / "apiserver"), layout, binaries)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's credentials."""
        return self.folders.kubeconfig("admin")

    def bin(self, name: str) -> Path:
        """`kubectl`, `helm`, `hyperkube` or `coredns`; BoxError while they are not built."""
        return self._programs() / name

    def _programs(self) -> Path:
        return self._binaries or cached_binaries()

    def nodes(self) -> list[str]:
        """The nodes that were started and not stopped, dead or alive."""
        names = {f"node{number}" for number in range(1, MAX_NODES + 1)}
        return [name for name in self.processes.names() if name in names]

    def alive(self) -> bool:
        """Whether everything that was started still runs."""
        names = self.processes.names()
        return set(control.API) <= set(names) and all(self.processes.running(name) for name in names)

    def up(self, nodes: int = 2, *, controllers: bool = True) -> None:
        """Start whatever does not run and wait until it works; a box that runs is left as it is.

        nodes: 0 starts the control plane alone; then without `controllers` there is only an API server.

        Raises:
            BoxError: something does not start or is not ready in time; the text ends with its log.
        """
        if not 0 <= nodes <= MAX_NODES or (nodes and self.layout.bridge is None):
            raise BoxError(f"a box has 0 to {MAX_NODES} nodes, and none without a bridge")
        with locked(self.folders.root.parent):
            self._refuse_another_box()
            self.folders.root.mkdir(parents=True, exist_ok=True)
            self._claim_state()
            if self.layout.bridge is not None:
                host.require_root()
                host.connect_bridge(self.layout, self.folders.root)
            pki.create(self.layout, self.folders)
            plane = self._control_plane()
            server = plane.start_api()
            if controllers or nodes:
                plane.start_controllers(server)
            if nodes:
                plane.start_dns(server)
                self._start_nodes(server, [f"node{number}" for number in range(1, nodes + 1)])

    def down(self) -> None:
        """Stop everything of this box, put the host back and delete the state. Without a box it does nothing."""
        if not self.folders.root.exists():
            return
        with locked(self.folders.root.parent):
            self.processes.kill(*self.processes.names())
            layout = self._recorded_layout() or self.layout
            if layout.bridge is not None and host.bridge_owner(layout) in {None, self.folders.root}:
                host.disconnect(layout)
                host.remove_cgroup(layout.cgroup)
            shutil.rmtree(self.folders.root)

    def kill_node(self, name: str) -> None:
        """Node loss: all of its processes end at once, and nobody is told."""
        node.stop(self._node(name), self.processes)

    def start_node(self, name: str) -> None:
        """Bring a lost node back (or a new one in) and wait until it is ready; a living one is left alone."""
        with locked(self.folders.root.parent):
            self._start_nodes(self.api(), [name])

    def node_exec(self, name: str, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run `argv` inside the node's namespaces; the result as it comes, whatever its exit status."""
        pid = node.init_pid(self._node(name), self.processes)
        if pid is None:
            raise BoxError(f"{name} is down")
        enter = ["nsenter", f"--target={pid}", "--mount", "--pid", "--net", "--uts", "--wd=/", "--"]
        return subprocess.run([*enter, *argv], capture_output=True, text=True, check=False)

    def stop_apiserver(self) -> None:
        """The API server goes away at once; its data and everything else stay."""
        self.processes.kill("kube-apiserver")

    def start_apiserver(self) -> None:
        """The API server is back and ready."""
        self._control_plane().start_api()

    def kubectl(self, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """kubectl as the administrator, with its output captured; the exit status is the caller's to judge."""
        command = [str(self.bin("kubectl")), f"--kubeconfig={self.kubeconfig}", *argv]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def load_images(self) -> None:
        """Bring the built images into every running node; what a node has already is not sent again."""
        with locked(self.folders.root.parent):
            self._load_images(self.nodes())

    def load_image(self, name: str, image: oci.Image) -> None:
        """Bring one more image into a running node."""
        with locked(self.folders.root.parent):
            node_images.load(self._node(name), self.folders, self.processes, [image])

    def allow_plain_registry(self, registry: str) -> None:
        """Let every node pull images from `registry` (host:port) over plain HTTP."""
        for name in self.nodes():
            node.allow_plain_registry(self._node(name), self.folders, registry)

    def api(self) -> ApiServer:
        return ApiServer(self.kubeconfig)

    def _refuse_another_box(self) -> None:
        """One box has a bridge, its networks and its ports; a dead one's are taken over."""
        owner = host.bridge_owner(self.layout)
        if owner is None or owner == self.folders.root:
            return
        other = Box(Folders(owner), self.layout)
        if any(other.processes.running(name) for name in other.processes.names()):
            raise BoxError(
                f"another cluster runs on this machine: its state is in {owner}. "
                "Stop it from its own checkout: make demo-stop, or make cluster-stop"
            )

    def _recorded_layout(self) -> Layout | None:
        try:
            return Layout.parse(self.folders.layout.read_text())
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _claim_state(self) -> None:
        """Certificates and data belong to one layout: another one's would never become ready."""
        recorded = self._recorded_layout() or self.layout
        if recorded != self.layout:
            raise BoxError(f"{self.folders.root} belongs to another box ({recorded.api_url}): stop that one first")
        self.folders.layout.write_text(self.layout.dump())

    def _node(self, name: str) -> NodeLayout:
        try:
            return self.layout.node(name)
        except KeyError:
            raise BoxError(f"no node is called {name}: they are node1 to node{MAX_NODES}") from None

    def _control_plane(self) -> control.ControlPlane:
        return control.ControlPlane(self.layout, self.folders, self.processes, self._programs())

    def _start_nodes(self, server: ApiServer, names: Sequence[str]) -> None:
        fresh = [name for name in names if not self.processes.running(name)]
        # a name that the server knows already may look ready from its last life
        stale_until = {name: dt.datetime.now(dt.UTC) for name in fresh if server.get(f"/api/v1/nodes/{name}")}
        if fresh:  # without the pause image no pod starts
            images.build(self.folders.root.parent, ("pause",), lambda words: None)
        for name in fresh:
            node_images.plant(self._node(name), self.folders)
            node.start(self._node(name), self.folders, self.processes, self.bin("hyperkube"))
        self._load_images(fresh)
        for name in names:
            self._wait_until_ready(server, name, stale_until.get(name))

    def _load_images(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(MAX_NODES) as pool:
            list(pool.map(lambda name: node_images.load(self._node(name), self.folders, self.processes), names))

    def _wait_until_ready(
        self, server: ApiServer, name: str, stale_until: dt.datetime | None, timeout_s: float = 90
    ) -> None:
        """Ready, and where old data may say so, by a status and a lease renewed since `stale_until`."""
        deadline_s = time.monotonic() + timeout_s
        while not (_is_ready(server, name, stale_until) and _renewed(server, name, stale_until)):
            if not self.processes.running(name) or time.monotonic() > deadline_s:
                raise BoxError(f"{name} is not ready:\n{node.explain(self._node(name), self.processes)}")
            time.sleep(0.1)


def _renewed(server: ApiServer, name: str, since: dt.datetime | None) -> bool:
    if since is None:
        return True
    lease = server.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
    renewed = (lease or {}).get("spec", {}).get("renewTime")
    return renewed is not None and dt.datetime.fromisoformat(renewed) > since


def _is_ready(server: ApiServer, name: str, since: dt.datetime | None) -> bool:
    """By a status of this life: a kubelet renews its lease before it says that it is not ready yet."""
    status = (server.get(f"/api/v1/nodes/{name}") or {}).get("status", {})
    told = [c for c in status.get("conditions", ()) if c["type"] == "Ready" and c["status"] == "True"]
    return any(since is None or _is_since(c["lastHeartbeatTime"], since) for c in told)


def _is_since(told: str, since: dt.datetime) -> bool:
    return dt.datetime.fromisoformat(told) >= since.replace(microsecond=0)
