"""Whether a node can mount an image as a volume, by the versions that it tells. Pure.

Neither `status.features` nor `status.runtimeHandlers` nor `status.declaredFeatures` says anything of it.

Sources: `ImageVolume` in kubernetes/pkg/features/kube_features.go (on by default since 1.35, always since 1.36),
containerd/internal/cri/server/container_image_mount.go (since 2.1) and, for CRI-O,
https://kubernetes.io/blog/2025/04/29/kubernetes-v1-33-image-volume-beta/.
"""

import re

from pagefleet_operator.facts.problems import Body

_KUBELET = (1, 35)
"""Before it a node's administrator turned the gate on or did not, and nothing tells which."""
_RUNTIMES = {"containerd": (2, 1), "cri-o": (1, 33)}
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def mounts_images(node: Body) -> bool:
    """Whether its kubelet and its container runtime are both new enough; False where it does not tell."""
    info = (node.get("status") or {}).get("nodeInfo") or {}
    runtime, _, version = str(info.get("containerRuntimeVersion", "")).partition("://")
    since = _RUNTIMES.get(runtime)
    return since is not None and _is_since(version, since) and _is_since(str(info.get("kubeletVersion", "")), _KUBELET)


def _is_since(version: str, first: tuple[int, int]) -> bool:
    found = _VERSION.match(version)
    return found is not None and (int(found[1]), int(found[2])) >= first
