"""The chart on a cluster, by the real Helm."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from e2e.diagnosis import SYSTEM_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.progress import Say, run_tool
from e2e.sites import CHECKOUT, ImageNames, Site
from pagefleet_api import labels

CHART = CHECKOUT / "charts" / "pagefleet"
NODE_CACHE = {"enabled": True, "path": "/run/pagefleet/models", "limit": "512Ki"}
"""On a disk of the nodes' own: whatever else they have is the machine's, which they share. One tiny model fits."""


class Release(NamedTuple):
    """One installation of the chart. Several share a cluster, each with the services of its shard."""

    name: str = "pagefleet"
    shard: str = ""

    @property
    def operator(self) -> str:
        """The name of the operator's Deployment and of its Lease."""
        return f"{self.name}-operator"

    @property
    def operator_pods(self) -> str:
        """The label selector of the operator's pods."""
        return f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=operator"


MAIN = Release()
"""The one that serves everything without a shard, and that brings the CRD."""


def values(names: ImageNames, replicas: int, which: Release = MAIN) -> Mapping[str, object]:
    """Chart values for these images. The digest is an annotation, so that a rebuilt image is rolled out."""
    repository, at, digest = names.control.partition("@")
    tagged, _, tag = names.control.rpartition(":")
    return {
        "image": {"repository": repository, "digest": digest} if at else {"repository": tagged, "tag": tag},
        "engineImage": names.engine,
        "replicas": replicas,
        "resources.requests.cpu": "300m",  # of a share beside engines that compute on the same two cores
        "podAnnotations": {"pagefleet.io/image-digest": names.control_digest},
        **({"shard": which.shard, "crds.install": False} if which.shard else {}),
    }


def install(
    site: Site,
    names: ImageNames,
    replicas: int = 1,
    timeout_s: int = 120,
    more: Mapping[str, object] = MappingProxyType({}),
    which: Release = MAIN,
) -> None:
    """Install or upgrade the release, with `more` values, and wait until the operator is ready.

    Raises:
        ToolFailed: Helm fails, or the operator is not ready in time.
    """
    _clear_interrupted(site, which)
    words = ["upgrade", "--install", which.name, str(CHART), f"--namespace={SYSTEM_NAMESPACE}", "--create-namespace"]
    given = [
        f"--set-json={key}={json.dumps(value)}" for key, value in {**values(names, replicas, which), **more}.items()
    ]
    run_tool([site.helm, *words, *given, "--wait", f"--timeout={timeout_s}s"], _quietly, site.kubectl.environment)


def _clear_interrupted(site: Site, which: Release) -> None:
    """Helm refuses every operation on a release whose latest one was interrupted. The CRD stays."""
    status = [site.helm, "status", which.name, f"--namespace={SYSTEM_NAMESPACE}", "-o", "json"]
    result = subprocess.run(status, env=site.kubectl.environment, capture_output=True, text=True, check=False)
    if result.returncode == 0 and json.loads(result.stdout)["info"]["status"].startswith("pending"):
        remove(site, which)


def remove(site: Site, which: Release) -> None:
    """Uninstall one release, if it is there; the CRD stays, and with it every InferenceService.

    Raises:
        ToolFailed: Helm fails.
    """
    words = ["uninstall", which.name, f"--namespace={SYSTEM_NAMESPACE}", "--ignore-not-found", "--wait"]
    run_tool([site.helm, *words], _quietly, site.kubectl.environment)


def _quietly(_line: str) -> None:
    """Helm prints the chart's notes, which tell what the caller is about to do anyway."""


def uninstall(site: Site, say: Say) -> None:
    """Take the release away and, with the CRD that the chart keeps, every InferenceService.

    The services go first, each after its pods: once their kind is gone the garbage collector finds no owner to ask
    about, and what they owned may stay for long.

    Raises:
        ToolFailed: Helm or kubectl fails.
    """
    kubectl, crd = site.kubectl, CHECKOUT / "crds" / "inferenceservices.yaml"
    if kubectl.run("get", "--ignore-not-found", "-o", "name", "-f", str(crd)).strip():
        services = ("inferenceservices.pagefleet.io", "--all", "--all-namespaces")
        everywhere = kubectl.within("")
        run_tool(everywhere.command("delete", *services), say, kubectl.environment)
        pods = ("pods", f"--selector={labels.MANAGED_BY}={labels.FIELD_MANAGER}", "--all-namespaces")
        run_tool(everywhere.command("wait", "--for=delete", *pods, "--timeout=180s"), say, kubectl.environment)
    run_tool(kubectl.command("delete", "--ignore-not-found", "-f", str(crd)), say, kubectl.environment)
    remove(site, MAIN)
    namespace = kubectl.command("delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found")
    run_tool(namespace, say, kubectl.environment)


def example(name: str) -> str:
    """The text of a file in `examples/`."""
    return Path(CHECKOUT / "examples" / name).read_text()


def operator_pods(kubectl: Kubectl) -> list[str]:
    """Names of the operator's pods."""
    return [pod["metadata"]["name"] for pod in kubectl.within(SYSTEM_NAMESPACE).items("pods", MAIN.operator_pods)]
