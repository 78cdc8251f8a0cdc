"""The chart on a cluster, by the real Helm."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from e2e.diagnosis import SYSTEM_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.progress import Say, run_tool
from e2e.sites import CHECKOUT, ImageNames, Site

NAME = "pagefleet"
CHART = CHECKOUT / "charts" / "pagefleet"
OPERATOR = "pagefleet-operator"
OPERATOR_PODS = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=operator"


def values(names: ImageNames, replicas: int) -> Mapping[str, object]:
    """Chart values for these images. The digest is an annotation, so that a rebuilt image is rolled out."""
    repository, at, digest = names.control.partition("@")
    tagged, _, tag = names.control.rpartition(":")
    return {
        "image": {"repository": repository, "digest": digest} if at else {"repository": tagged, "tag": tag},
        "engineImage": names.engine,
        "replicas": replicas,
        "podAnnotations": {"pagefleet.io/image-digest": names.control_digest},
    }


def install(
    site: Site,
    names: ImageNames,
    replicas: int = 1,
    timeout_s: int = 120,
    more: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Install or upgrade the release, with `more` values, and wait until the operator is ready.

    Raises:
        ToolFailed: Helm fails, or the operator is not ready in time.
    """
    _clear_interrupted(site)
    words = ["upgrade", "--install", NAME, str(CHART), f"--namespace={SYSTEM_NAMESPACE}", "--create-namespace"]
    given = [f"--set-json={key}={json.dumps(value)}" for key, value in {**values(names, replicas), **more}.items()]
    run_tool([site.helm, *words, *given, "--wait", f"--timeout={timeout_s}s"], _quietly, site.kubectl.environment)


def _clear_interrupted(site: Site) -> None:
    """Helm refuses every operation on a release whose latest one was interrupted. The CRD stays."""
    status = [site.helm, "status", NAME, f"--namespace={SYSTEM_NAMESPACE}", "-o", "json"]
    result = subprocess.run(status, env=site.kubectl.environment, capture_output=True, text=True, check=False)
    if result.returncode == 0 and json.loads(result.stdout)["info"]["status"].startswith("pending"):
        undo = [site.helm, "uninstall", NAME, f"--namespace={SYSTEM_NAMESPACE}", "--wait"]
        run_tool(undo, _quietly, site.kubectl.environment)


def _quietly(_line: str) -> None:
    """Helm prints the chart's notes, which tell what the caller is about to do anyway."""


def uninstall(site: Site, say: Say) -> None:
    """Take the release away and, with the CRD that the chart keeps, every InferenceService.

    Raises:
        ToolFailed: Helm or kubectl fails.
    """
    kubectl, crd = site.kubectl, CHECKOUT / "crds" / "inferenceservices.yaml"
    run_tool(kubectl.command("delete", "--ignore-not-found", "-f", str(crd)), say, kubectl.environment)
    helm = [site.helm, "uninstall", NAME, f"--namespace={SYSTEM_NAMESPACE}", "--ignore-not-found", "--wait"]
    run_tool(helm, say, kubectl.environment)
    namespace = kubectl.command("delete", "namespace", SYSTEM_NAMESPACE, "--ignore-not-found")
    run_tool(namespace, say, kubectl.environment)


def example(name: str) -> str:
    """The text of a file in `examples/`."""
    return Path(CHECKOUT / "examples" / name).read_text()


def operator_pods(kubectl: Kubectl) -> list[str]:
    """Names of the operator's pods."""
    return [pod["metadata"]["name"] for pod in kubectl.within(SYSTEM_NAMESPACE).items("pods", OPERATOR_PODS)]
