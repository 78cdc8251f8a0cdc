"""What a pod with GPUs needs beside its engine: the devices, memory that its processes share, NCCL's settings."""

from typing import Any

from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import Spec

Part = dict[str, Any]

_SHARED_MEMORY = "shm"
_SHARED_MEMORY_PATH = "/dev/shm"
_SHARED_GIB_PER_GPU = 2
"""NCCL's buffers between processes and an engine's messages, with room; only what is used counts. A container's own
/dev/shm has 64 MiB."""


def limits(spec: Spec) -> dict[str, str]:
    """The devices. Kubernetes takes the same number as the request, and no other."""
    count = spec.gpu_count
    return {spec.resources.gpu.resource_name: str(count)} if count else {}


def environment(spec: Spec) -> list[Part]:
    """NVLink multicast stays off where GPUs talk to each other: a process that dies in it can leave the host's switch
    unusable for everybody there. Our engine sets the same by itself.
    """
    return [{"name": "NCCL_NVLS_ENABLE", "value": "0"}] if spec.gpu_count > 1 else []


def volumes(spec: Spec) -> list[Part]:
    """Memory that the processes of one pod share; what is used of it counts against the container's memory limit."""
    if not _shares(spec):
        return []
    size = f"{_SHARED_GIB_PER_GPU * max(spec.gpu_count, 1)}Gi"
    return [{"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}}]


def mounts(spec: Spec) -> list[Part]:
    """Where that memory is."""
    return [{"name": _SHARED_MEMORY, "mountPath": _SHARED_MEMORY_PATH}] if _shares(spec) else []


def _shares(spec: Spec) -> bool:
    """Several GPUs, or an engine that passes tensors between its processes even with one."""
    return spec.gpu_count > 1 or spec.engine.runtime is not Runtime.PAGEFLEET
