"""The phases of an engine's start, by the names that its metric, its log, the dashboard and the docs have."""

from enum import StrEnum


class StartPhase(StrEnum):
    """One after the other, in this order; an engine without a GPU has no `PROFILE` and no `GRAPHS`."""

    IMPORT = "import"
    """Python and torch."""
    WEIGHTS = "weights"
    """Files to memory, or to the GPU."""
    PROFILE = "profile"
    """The largest steps, of which the memory for everything but the KV cache is measured; compiles kernels."""
    KV = "kv"
    """The KV cache."""
    GRAPHS = "graphs"
    """CUDA graphs of the first sizes; further kernels."""
    WARMUP = "warmup"
    """A first token."""
