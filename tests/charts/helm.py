"""The real Helm on the chart, and a YAML reader that refuses a key that is there twice."""

import subprocess
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.binaries import KUBERNETES_VERSION, cached_binaries

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "pagefleet"
NAMESPACE = "pagefleet-system"

Manifest = dict[str, Any]


class StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys, as Flux and kustomize do and plain Helm does not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate keys {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def helm(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run Helm with its output captured; the exit status is the caller's to judge."""
    return subprocess.run([str(cached_binaries() / "helm"), *argv], capture_output=True, text=True, check=False)


def template(*argv: str) -> subprocess.CompletedProcess[str]:
    """Render the chart without a server, as release `pagefleet`."""
    version = KUBERNETES_VERSION.removeprefix("v")
    return helm("template", "pagefleet", str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={version}", *argv)


def render(*argv: str) -> list[Manifest]:
    """The rendered objects, read strictly. Raises AssertionError with Helm's words when it does not render."""
    result = template(*argv)
    if result.returncode:
        raise AssertionError(result.stderr)
    documents = yaml.load_all(result.stdout, StrictLoader)
    return [document for document in documents if document]
