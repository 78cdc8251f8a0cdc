"""A real API server with real controllers and no nodes, once for all tests here; an operator for each test."""

import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.box import Box
from e2e.cluster.layout import Layout
from pagefleet_api.crd import custom_resource_definition
from tests.pagefleet_operator.apiserver.api import Api, eventually
from tests.pagefleet_operator.apiserver.operator_process import nothing
from tests.pagefleet_operator.apiserver.operators import FAST, OperatorProcess
from tests.ports import free_port

_NUMBERS = itertools.count(1)
_PORTS_OF_A_BOX = 8


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The control plane; CRD installed."""
    layout = Layout(bridge=None, first_port=free_block())
    running = Box.at(tmp_path_factory.mktemp("box"), layout)
    running.up(nodes=0, controllers=False)
    try:
        api = Api(running.kubeconfig)
        api.create("customresourcedefinitions", custom_resource_definition())
        eventually(lambda: _served(api), "the CRD is served")
        running.up(nodes=0)  # after the CRD, as the garbage collector looks for new kinds every 30 s only
        running.processes.kill("kube-scheduler")  # it would go on calling pods unschedulable that `Fleet` runs
        yield running
    finally:
        running.down()


@pytest.fixture
def api(box: Box) -> Api:
    """The administrator's view."""
    return Api(box.kubeconfig)


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"t{next(_NUMBERS)}"
    api.create("namespaces", {"metadata": {"name": name}})
    yield name
    for service in api.list("inferenceservices", name):
        api.delete("inferenceservices", name, service["metadata"]["name"])


Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(box: Box, namespace: str, tmp_path: Path) -> Iterator[Start]:
    """Starts operators of the test's namespace; all are stopped at the end."""
    started: list[OperatorProcess] = []

    def begin(
        *,
        kubeconfig: Path | None = None,
        flags: tuple[str, ...] = (),
        first: Callable[[], None] = nothing,
        **timings: Any,
    ) -> OperatorProcess:
        port, number = free_port(), len(started)
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or box.kubeconfig), "POD_NAME": f"operator-{number}"}
        # a proxy is for the way out of a cluster; no user name, as in a container with any user id
        environment |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
            environment.pop(name, None)
        flags = ("--engine-image", "engine:1", *(flags or ("--namespace", namespace)))
        flags += ("--listen", f"127.0.0.1:{port}", "--lease-namespace", namespace)
        log = tmp_path / f"operator-{number}.log"
        started.append(OperatorProcess({**FAST, **timings}, flags, environment, port, log, first))
        return started[-1]

    yield begin
    for operator in started:
        with contextlib.suppress(ProcessLookupError):
            operator.stop()


def _served(api: Api) -> bool:
    try:
        return isinstance(api.list("inferenceservices"), list)
    except Exception:
        return False


def free_block() -> int:
    """A port with a few free ones after it."""
    for first in range(21000 + os.getpid() % 500 * 10, 32000, _PORTS_OF_A_BOX):
        if all(_is_free(first + offset) for offset in range(_PORTS_OF_A_BOX)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
