"""The control plane: etcd, API server, controller manager, scheduler and the DNS server, as processes of the host."""

import time
from collections.abc import Callable
from pathlib import Path

from e2e.cluster import arguments, configuration
from e2e.cluster.errors import BoxError
from e2e.cluster.kube import ApiServer
from e2e.cluster.layout import Folders, Layout
from e2e.cluster.processes import Processes

API = ("etcd", "kube-apiserver")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
DNS = ("coredns",)


def commands(layout: Layout, folders: Folders, binaries: Path) -> dict[str, list[str]]:
    """The command line of each component by its name. Pure."""
    hyperkube = str(binaries / "hyperkube")
    return {
        "etcd": [hyperkube, *arguments.etcd(layout, folders)],
        "kube-apiserver": [hyperkube, *arguments.api_server(layout, folders)],
        "kube-controller-manager": [hyperkube, *arguments.controller_manager(layout, folders)],
        "kube-scheduler": [hyperkube, *arguments.scheduler(layout, folders)],
        "coredns": [str(binaries / "coredns"), *arguments.coredns(folders.root / "Corefile")],
    }


class ControlPlane:
    """Starts what does not run; what runs is left alone."""

    def __init__(self, layout: Layout, folders: Folders, processes: Processes, binaries: Path) -> None:
        self._layout, self._folders, self._processes = layout, folders, processes
        self._commands = commands(layout, folders, binaries)

    def start(self, *names: str) -> None:
        for name in names:
            if not self._processes.running(name):
                self._processes.start(name, self._commands[name])

    def start_api(self, timeout_s: float = 60) -> ApiServer:
        """etcd and the API server, ready to answer."""
        self.start(*API)
        server = ApiServer(self._folders.kubeconfig("admin"))
        self._wait(server.ready, timeout_s, "the API server is not ready", *API)
        return server

    def start_controllers(self, server: ApiServer, timeout_s: float = 60) -> None:
        """Ready once they made the account without which no pod is admitted."""
        self.start(*CONTROLLERS)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait(lambda: server.get(account) is not None, timeout_s, "the controllers do nothing", *CONTROLLERS)

    def start_dns(self, server: ApiServer) -> None:
        (self._folders.root / "Corefile").write_text(configuration.corefile(self._layout, self._folders))
        self.start(*DNS)
        for path, manifest in configuration.dns_objects(self._layout):
            server.apply(path, manifest)

    def _wait(self, done: Callable[[], bool], timeout_s: float, complaint: str, *names: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not done():
            ended = [name for name in names if not self._processes.running(name)]
            if ended or time.monotonic() > deadline_s:
                logs = "\n".join(f"--- {name}\n{self._processes.log_tail(name)}" for name in ended or names)
                raise BoxError(f"{complaint}:\n{logs}")
            time.sleep(0.05)
