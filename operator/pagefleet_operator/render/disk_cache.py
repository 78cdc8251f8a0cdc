"""Storage of a pod for blocks of the KV cache that leave its memory: as large as was asked, and gone with the pod."""

from typing import Any

from pagefleet_api import quantity
from pagefleet_api.disk_cache import STORAGE
from pagefleet_api.service import Spec

Part = dict[str, Any]

FOLDER = "/var/cache/pagefleet/kv"
_VOLUME = "kv-cache"
_FILLED_PERCENT = 95
"""What an engine may fill: the kubelet counts whole blocks of the file system, and folders, and evicts a pod whose
volume is larger than it may be."""


def bytes_of_rank(spec: Spec) -> int | None:
    """What each process with a GPU may write; None without a disk."""
    disk = spec.engine.kv_cache.disk_offload
    return None if disk is None else quantity.to_bytes(disk) * _FILLED_PERCENT // 100 // spec.engine.parallelism.tensor


def volumes(spec: Spec) -> list[Part]:
    """The storage."""
    disk = spec.engine.kv_cache.disk_offload
    return [] if disk is None else [{"name": _VOLUME, "emptyDir": {"sizeLimit": disk}}]


def mounts(spec: Spec) -> list[Part]:
    """Where it is."""
    return [] if spec.engine.kv_cache.disk_offload is None else [{"name": _VOLUME, "mountPath": FOLDER}]


def requests(spec: Spec) -> dict[str, str]:
    """So that pods go to nodes with so much free; nothing where the user says how much of a disk a pod takes in all."""
    disk = spec.engine.kv_cache.disk_offload
    told = STORAGE in spec.resources.requests or STORAGE in spec.resources.limits
    return {} if disk is None or told else {STORAGE: disk}
