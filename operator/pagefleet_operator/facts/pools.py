"""Which pool of nodes a node is of, by the labels that clouds and node autoscalers give it. Pure."""

from collections.abc import Mapping

POOL_LABELS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
    "nvidia.com/gpu.product",
)
"""The first that a node has names its pool: Karpenter's before the cloud's, whose group its nodes may share, and
without any a kind of machine, or of GPU. Sources: Karpenter's "Scheduling" page, GKE's node pools, EKS's managed node
groups, AKS's node pools, the well-known labels of Kubernetes, NVIDIA's GPU feature discovery.
"""


def pool_of(labels: Mapping[str, str]) -> str | None:
    """The pool's name; None where no label tells one."""
    return next((labels[name] for name in POOL_LABELS if labels.get(name)), None)
