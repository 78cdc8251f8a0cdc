"""Which nodes can mount an image as a volume."""

from typing import Any

import pytest

from pagefleet_operator.facts.image_volumes import mounts_images


def _node(kubelet: str, runtime: str) -> dict[str, Any]:
    return {"status": {"nodeInfo": {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}}}


@pytest.mark.parametrize(
    ("kubelet", "runtime", "can"),
    [
        ("v1.35.0", "containerd://2.1.0", True),
        ("v1.36.2+k3s1", "containerd://2.2.1-k3s1", True),
        ("v1.35.1-eks-1a2b3c", "cri-o://1.33.0", True),
        ("v1.35.0", "containerd://2.0.5", False),
        ("v1.35.0", "containerd://1.7.27", False),
        ("v1.35.0", "cri-o://1.32.4", False),
        ("v1.35.0", "docker://29.6.2", False),
        ("v1.34.4", "containerd://2.1.0", False),
        ("", "", False),
    ],
)
def test_it_takes_a_kubelet_with_the_gate_on_by_default_and_a_runtime_that_can(
    kubelet: str, runtime: str, can: bool
) -> None:
    assert mounts_images(_node(kubelet, runtime)) is can


def test_a_node_that_tells_nothing_is_not_trusted() -> None:
    assert not mounts_images({"metadata": {"name": "new"}})
