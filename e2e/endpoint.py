"""Ways from this machine to a service's OpenAI API."""

import re
import subprocess
import threading
from typing import Protocol

from e2e.service import Pod, Service
from pagefleet_api import labels


class Endpoint(Protocol):
    """Where the next request goes."""

    def url(self) -> str:
        """The base URL, with its `/v1`, for one connection."""

    def close(self) -> None:
        """Give back what it holds."""


class ClusterAddress:
    """The Service's own address, which the host of a cluster in a box reaches; kube-proxy chooses the pod."""

    def __init__(self, service: Service) -> None:
        self._url = service.cluster_url()

    def url(self) -> str:
        return self._url

    def close(self) -> None:
        """Nothing is held."""


class PodForwards:
    """One `kubectl port-forward` for each pod that serves, taken in turn.

    A forward to the Service would stay on one pod for its whole life. A pod that left the Service gets no new
    request here either, and its forward stays open so that its answers can end.
    """

    def __init__(self, service: Service, refresh_s: float = 2.0) -> None:
        self._service = service
        self._forwards: dict[str, tuple[subprocess.Popen[str], int]] = {}
        self._serving: list[int] = []
        self._turn = 0
        self._closed = threading.Event()
        self._refresh()
        self._thread = threading.Thread(target=self._follow, args=(refresh_s,), name="port-forwards", daemon=True)
        self._thread.start()

    def url(self) -> str:
        """The next pod's.

        Raises:
            OSError: no pod serves.
        """
        ports = self._serving
        if not ports:
            raise ConnectionRefusedError(f"no pod of {self._service.name} serves")
        self._turn += 1
        return f"http://127.0.0.1:{ports[self._turn % len(ports)]}/v1"

    def close(self) -> None:
        self._closed.set()
        self._thread.join(10)
        for process, _ in self._forwards.values():
            process.terminate()
            process.wait(10)

    def _follow(self, refresh_s: float) -> None:
        while not self._closed.wait(refresh_s):
            self._refresh()

    def _refresh(self) -> None:
        pods = self._service.pods()
        names = {pod.name for pod in pods}
        for name in [name for name in self._forwards if name not in names]:
            self._forwards.pop(name)[0].terminate()
        serving = [port for pod in pods if pod.ready and pod.serving if (port := self._port(pod)) is not None]
        self._serving = serving

    def _port(self, pod: Pod) -> int | None:
        known = self._forwards.get(pod.name)
        if known is not None and known[0].poll() is None:
            return known[1]
        kubectl = self._service.kubectl
        process = subprocess.Popen(
            kubectl.command("port-forward", f"pod/{pod.name}", f":{labels.ENGINE_PORT}"),
            env=kubectl.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None  # by PIPE
        # Forwarding from 127.0.0.1:35035 -> 8000
        match = re.search(r":(\d+) ->", process.stdout.readline())
        if match is None:
            process.terminate()
            return None
        # drained so that its log of connections never blocks it
        threading.Thread(target=process.stdout.read, daemon=True).start()
        self._forwards[pod.name] = (process, int(match[1]))
        return int(match[1])
