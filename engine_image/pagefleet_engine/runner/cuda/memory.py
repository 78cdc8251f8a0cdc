"""How the GPU's memory is divided. Pure."""

from typing import NamedTuple

from pagefleet_engine.runner.errors import LaunchImpossible

MARGIN_BYTES = 192 << 20
"""For what no measurement foresees: the driver's own growth, fragmentation."""


class GpuMemory(NamedTuple):
    """Bytes of one GPU: all, what nobody uses now, what this process has taken from it (its context included)."""

    total_bytes: int
    free_bytes: int
    own_bytes: int

    @property
    def others_bytes(self) -> int:
        """What other processes use."""
        return max(self.total_bytes - self.free_bytes - self.own_bytes, 0)


class Division(NamedTuple):
    """Where the bytes go; keyed as the metric `memory_bytes{kind}`."""

    weights: int
    activations: int
    reserved: int
    kv: int


def divide(memory: GpuMemory, utilisation: float, *, weight_bytes: int, peak_bytes: int, graph_bytes: int) -> Division:
    """What is left for the KV cache when weights, the measured peak of a step and graphs have theirs.

    Other processes' memory is not charged to this one: the budget is `utilisation` of the whole, cut only by what
    is really free. Raises LaunchImpossible when nothing is left.
    """
    budget = int(memory.total_bytes * utilisation)
    reserved = max(memory.own_bytes - weight_bytes, 0) + graph_bytes + MARGIN_BYTES
    by_budget = budget - weight_bytes - peak_bytes - reserved
    # while a size is captured, its step is computed once beside the memory that the captured ones keep
    by_room = memory.free_bytes - 2 * peak_bytes - graph_bytes - MARGIN_BYTES
    kv = min(by_budget, by_room)
    if kv <= 0:
        raise LaunchImpossible(
            f"--gpu-memory-utilization {utilisation:g} of {_gib(memory.total_bytes)} is {_gib(budget)}; weights take "
            f"{_gib(weight_bytes)}, a step up to {_gib(peak_bytes)}, context and graphs {_gib(reserved)}, other "
            f"processes use {_gib(memory.others_bytes)}: nothing is left for the KV cache. Give a larger share, "
            "a smaller --max-num-batched-tokens or --max-num-seqs, a larger GPU, or free the others' memory"
        )
    return Division(weights=weight_bytes, activations=peak_bytes, reserved=reserved, kv=kv)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
