"""GPU types, from `gpu_types.json` beside this file, which also says where its numbers are from."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

USUAL_USABLE_SHARE = 0.985
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU type. `memory_bytes` is the total that nvidia-smi shows, `usable_bytes` what programs get of it."""

    name: str
    vendor: str
    memory_bytes: int
    usable_bytes: int
    bandwidth_bytes_s: float
    compute_capability: tuple[int, int] | None
    products: tuple[str, ...] = ()


class GpuUnknown(ValueError):
    """No such type; the text lists those there are."""


@cache
def known() -> tuple[Gpu, ...]:
    """Every type of the data file, in its order."""
    return read(json.loads(resources.files(__package__).joinpath("gpu_types.json").read_text()))


def read(data: dict[str, Any]) -> tuple[Gpu, ...]:
    """Types from data laid out as in gpu_types.json."""
    return tuple(_gpu(entry) for entry in data["gpus"])


def _gpu(entry: dict[str, Any]) -> Gpu:
    memory = entry["memoryMiB"] * _MIB
    capability = entry.get("computeCapability")
    major, _, minor = (capability or "0.0").partition(".")
    return Gpu(
        entry["name"],
        entry["vendor"],
        memory,
        entry["usableMiB"] * _MIB if "usableMiB" in entry else int(memory * USUAL_USABLE_SHARE),
        entry["bandwidthGBs"] * 1e9,
        None if capability is None else (int(major), int(minor)),
        tuple(entry["products"]),
    )


def named(name: str, gpus: Iterable[Gpu]) -> Gpu:
    """The type of this name, whatever its case. Raises GpuUnknown."""
    listed = tuple(gpus)
    for gpu in listed:
        if gpu.name.lower() == name.lower():
            return gpu
    raise GpuUnknown(f"GPU type {name!r} is not known; there are {', '.join(gpu.name for gpu in listed)}")


def of_node(product: str | None, memory_mib: int | None, gpus: Iterable[Gpu]) -> Gpu | None:
    """The type of a node by the labels nvidia.com/gpu.product and nvidia.com/gpu.memory; None without either.

    A product that is in no list counts by its memory alone. Where a GPU is cut up (MIG), both labels tell of the part.
    """
    listed = tuple(gpus)
    starts = [(start, gpu) for gpu in listed for start in gpu.products if product and product.startswith(start)]
    whole = max(starts, key=lambda pair: len(pair[0]), default=None)
    if whole is not None and (memory_mib is None or abs(whole[1].memory_bytes - memory_mib * _MIB) < 1 << 30):
        return whole[1]
    if memory_mib is None:
        return None
    memory, name = memory_mib * _MIB, product or f"GPU with {memory_mib} MiB"
    capability = whole[1].compute_capability if whole is not None else None
    return Gpu(name, "nvidia", memory, int(memory * USUAL_USABLE_SHARE), 0.0, capability)
