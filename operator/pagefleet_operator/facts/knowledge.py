"""What is known of a service's model and of the GPUs before a pod has told anything, as values. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pagefleet_api import quantity
from pagefleet_api.sizing import gpu_types
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.sizing.gpu_types import Gpu
from pagefleet_operator.facts.problems import Body


class GpuNodes(NamedTuple):
    """A type of GPU and how many nodes have it."""

    gpu: Gpu
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known; what is not is None, or has its default.

    facts: None while the model's files are being read (`reading`), and where they cannot be: then `unknown` says why.
    ranks: of adapters, by name, as their own files have them. draft: of the model that guesses, where there is one.
    gpus: None where no node tells the type of its GPUs, or the operator may not look.
    mounts_image: every node that the pods may go to can mount the model's image, where that is to be decided; None
    while the API server is too busy to tell.
    placeable: some node could take the pods, however full it is, where pods of another kind are to make room for them;
    None where that is not to be decided or cannot be told.
    """

    facts: ModelFacts | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    draft: ModelFacts | None = None
    unknown: str = "nobody has looked yet"
    reading: bool = False
    gpus: tuple[GpuNodes, ...] | None = None
    mounts_image: bool | None = False
    placeable: bool | None = None


def gpu_nodes(nodes: Iterable[Body], resource: str) -> tuple[GpuNodes, ...] | None:
    """The types of GPU on nodes that have the extended resource; None when none of them tells its type.

    GPU feature discovery labels nodes with `<resource>.product` and `<resource>.memory` (MiB), for parts of a GPU too.
    """
    found: Counter[Gpu] = Counter()
    for node in nodes:
        has = str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0"))
        told = (node.get("metadata") or {}).get("labels") or {}
        memory = str(told.get(f"{resource}.memory", ""))
        gpu = gpu_types.of_node(
            told.get(f"{resource}.product"), int(memory) if memory.isdecimal() else None, gpu_types.known()
        )
        if quantity.to_bytes(has) > 0 and gpu is not None:
            found[gpu] += 1
    return tuple(GpuNodes(gpu, count) for gpu, count in found.items()) or None
