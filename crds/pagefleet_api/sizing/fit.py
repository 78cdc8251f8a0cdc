"""What fits on a GPU: weights, a step's activations, what the runtime keeps, and the rest for keys and values. Pure.

The constants are fitted to measurements on one H200 (bench/results, and vLLM 0.24 beside it); they foresee the number
of KV tokens there within half a percent. Other engines than vLLM and ours are taken to be like vLLM.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pagefleet_api.sizing.adapters import adapters_bytes
from pagefleet_api.sizing.blocks import BLOCK_TOKENS, blocks_for
from pagefleet_api.sizing.gpu_types import Gpu
from pagefleet_api.sizing.model import ModelShape
from pagefleet_api.sizing.weights import ELEMENT_BYTES, Weights

OWN_RUNTIME = "pagefleet"
OLDEST_CAPABILITY = (8, 0)
_CONTEXT_BYTES, _MARGIN_BYTES, _LIBRARIES_BYTES = 640 << 20, 192 << 20, 670 << 20
_GRAPH_BYTES, _GRAPHS = 4 << 20, 69
_OWN_RESERVE_BYTES = _CONTEXT_BYTES + _MARGIN_BYTES + _LIBRARIES_BYTES + _GRAPHS * _GRAPH_BYTES
_OTHER_RESERVE_BYTES = 640 << 20
_CPU_CACHE_BYTES = 512 << 20
"""The engine's own default."""
_CPU_PROCESS_BYTES = 350 << 20
"""Two Python processes with torch in one of them."""
_LOGIT_BYTES = 12
"""A logit is kept as computed, as float32, and sorted or masked."""


class DraftSize(NamedTuple):
    """What a model that guesses for another one takes of each GPU beside it."""

    weights_bytes: int
    kv_bytes_per_token: int


_NO_DRAFT = DraftSize(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How a model is to be run, as the resource says it."""

    runtime: str = OWN_RUNTIME
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    quantisation: str | None = None
    """How the engine quantises weights as it loads them, by its own name."""
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    memory_utilisation: float = 0.90
    tensor: int = 1
    pipeline: int = 1
    """Stages, each with its part of the layers on `tensor` GPUs."""
    kv_size_bytes: int | None = None
    adapter_ranks: tuple[int, ...] = ()
    """Of each LoRA adapter that every pod has."""
    draft: DraftSize = _NO_DRAFT

    def element_bytes(self, shape: ModelShape) -> int:
        """Of a weight that is not quantised; a format that is not known counts as two.

        With auto our engine keeps the files' format on a GPU; others run float32 files in two bytes.
        """
        if self.dtype != "auto":
            return ELEMENT_BYTES.get(self.dtype, 2)
        if self.device == "cpu" and self.runtime == OWN_RUNTIME:
            return 4  # measured when the pod starts: this is the larger answer
        found = ELEMENT_BYTES.get(shape.dtype or "bfloat16", 2)
        return found if self.runtime == OWN_RUNTIME else min(found, 2)

    def kv_element_bytes(self, shape: ModelShape) -> int:
        """Of a number in the cache."""
        name = self.kv_dtype if self.kv_dtype != "auto" else shape.kv_dtype
        return self.element_bytes(shape) if name is None else ELEMENT_BYTES.get(name, 2)

    @property
    def bounds_windows(self) -> bool:
        """Whether layers with a window keep no more than it: our engine keeps everything that it has blocks for."""
        return self.runtime != OWN_RUNTIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where the memory of the fullest GPU goes, in bytes, and what its cache holds. `reason` says why it does not fit.

    `window_tokens` is the longest sequence; `sequences` how many of that length fit at once.
    """

    gpu: str
    budget_bytes: int
    weights_bytes: int
    adapters_bytes: int
    draft_bytes: int
    """Weights; its keys and values are in those of a token."""
    activations_bytes: int
    reserved_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int
    kv_blocks: int
    window_tokens: int
    sequences: float
    reason: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the service can run there."""
        return self.reason is None

    @property
    def breakdown(self) -> str:
        """Where the memory goes, in words."""
        adapters = f", adapters {gib(self.adapters_bytes)}" if self.adapters_bytes else ""
        draft = f", the draft's {gib(self.draft_bytes)}" if self.draft_bytes else ""
        parts = f"weights {gib(self.weights_bytes)}{adapters}{draft}, a step {gib(self.activations_bytes)}"
        rest = f"the runtime {gib(self.reserved_bytes)}, keys and values {gib(self.kv_bytes)}"
        return f"of {gib(self.budget_bytes)} on {self.gpu}: {parts}, {rest}"


def fit(shape: ModelShape, weights: Weights, demand: Demand, gpu: Gpu) -> Fit:
    """How `demand` does on GPUs of this type, `demand.tensor` in each of `demand.pipeline` stages."""
    budget = int(gpu.usable_bytes * demand.memory_utilisation)
    parts = rank_weights_bytes(shape, weights, demand), activations_bytes(shape, demand), _reserve_bytes(demand)
    adapters = _of_stage(_adapters_bytes(shape, demand), shape, demand)
    room = budget - sum(parts) - adapters - demand.draft.weights_bytes
    wanted_window = min(demand.max_model_len or shape.max_positions, shape.max_positions)
    kv_bytes = room if demand.kv_size_bytes is None else demand.kv_size_bytes
    element_bytes = demand.kv_element_bytes(shape)
    per_token = _of_stage(shape.kv_bytes_per_token(element_bytes, demand.tensor), shape, demand)
    per_token += demand.draft.kv_bytes_per_token
    full = _sequence_bytes(shape, demand, wanted_window)
    tokens = _tokens(max(kv_bytes, 0), full, wanted_window)
    if demand.runtime == OWN_RUNTIME:
        tokens = min(tokens, demand.max_num_seqs * blocks_for(wanted_window) * BLOCK_TOKENS)
    window = wanted_window if demand.max_model_len or demand.bounds_windows else min(wanted_window, tokens)
    reason = _misfit(shape, demand, gpu) or _shortage(demand, room, _Cache(tokens, window, full))
    return Fit(
        gpu=gpu.name,
        budget_bytes=budget,
        weights_bytes=parts[0],
        adapters_bytes=adapters,
        draft_bytes=demand.draft.weights_bytes,
        activations_bytes=parts[1],
        reserved_bytes=parts[2],
        kv_bytes=max(kv_bytes, 0),
        kv_bytes_per_token=per_token,
        kv_tokens=tokens,
        kv_blocks=tokens // BLOCK_TOKENS,
        window_tokens=window,
        sequences=tokens / window if window else 0.0,
        reason=reason,
    )


def fit_cpu(shape: ModelShape, weights: Weights, demand: Demand, limit_bytes: int | None) -> Fit:
    """As `fit`, in a container's memory limit; without one everything fits. The cache is of the size asked for."""
    activations, kv_bytes = activations_bytes(shape, demand), demand.kv_size_bytes or _CPU_CACHE_BYTES
    adapters = _adapters_bytes(shape, demand)
    held = weights.total_bytes + adapters + demand.draft.weights_bytes
    needed = held + activations + _CPU_PROCESS_BYTES + kv_bytes
    per_token = shape.kv_bytes_per_token(demand.kv_element_bytes(shape)) + demand.draft.kv_bytes_per_token
    blocks = kv_bytes // (per_token * BLOCK_TOKENS)
    window = min(demand.max_model_len or shape.max_positions, shape.max_positions, blocks * BLOCK_TOKENS)
    reason = None
    if limit_bytes is not None and needed > limit_bytes:
        reason = (
            f"weights {gib(held)}, cache {gib(kv_bytes)}, a step up to {gib(activations)} and the "
            f"process are more than resources.limits.memory {gib(limit_bytes)}; raise it to at least {gib(needed)}"
        )
    elif blocks == 0:
        reason = f"engine.kvCache.size {gib(kv_bytes)} holds no block of {BLOCK_TOKENS} tokens; raise it"
    return Fit(
        gpu="cpu",
        budget_bytes=needed if limit_bytes is None else limit_bytes,
        weights_bytes=weights.total_bytes,
        adapters_bytes=adapters,
        draft_bytes=demand.draft.weights_bytes,
        activations_bytes=activations,
        reserved_bytes=_CPU_PROCESS_BYTES,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        kv_tokens=blocks * BLOCK_TOKENS,
        kv_blocks=blocks,
        window_tokens=window,
        sequences=blocks * BLOCK_TOKENS / window if window else 0.0,
        reason=reason,
    )


def rank_weights_bytes(shape: ModelShape, weights: Weights, demand: Demand) -> int:
    """Of the fullest rank: our engine keeps embedding and head whole on the first, others share them out too.

    What is whole on each rank besides (norms, routers, keys of fewer heads than ranks) is a hundredth and not counted.
    """
    if demand.tensor == demand.pipeline == 1:
        return weights.total_bytes
    element_bytes = demand.element_bytes(shape)
    embedding, head = (count * element_bytes for count in (shape.parameters.embedding, shape.parameters.head))
    layers = max(weights.total_bytes - embedding - head, 0)
    # of a pipeline the first stage has the embedding and the last one the head; a shared one is on both
    ends = embedding + head if demand.pipeline == 1 else max(embedding, head)
    stage = _of_stage(layers, shape, demand)
    return int(stage / demand.tensor + (ends if demand.runtime == OWN_RUNTIME else ends / demand.tensor))


def _adapters_bytes(shape: ModelShape, demand: Demand) -> int:
    """Of all layers. Each GPU is taken to have them whole: engines share out one of an adapter's two matrices."""
    return adapters_bytes(shape, demand.adapter_ranks, demand.runtime, demand.element_bytes(shape))


def _of_stage(size_bytes: int, shape: ModelShape, demand: Demand) -> int:
    """What the stage with most layers has of something that all layers have alike."""
    most_layers = -(-shape.layers // demand.pipeline)
    return -(-size_bytes * most_layers // shape.layers)


def activations_bytes(shape: ModelShape, demand: Demand) -> int:
    """The largest step, beside weights and cache: rows of the widest layer, and logits of every sequence.

    Fitted to two models measured on an H200 (Llama-3.1-8B and Qwen3-0.6B shapes), within 3 %.
    """
    numbers = (3 * shape.inner_size + shape.qkv_size) / demand.tensor + 3 * shape.hidden_size
    rows = demand.max_num_batched_tokens * numbers * min(demand.element_bytes(shape), 4)
    return int(rows + demand.max_num_seqs * shape.vocab_size * _LOGIT_BYTES)


def _reserve_bytes(demand: Demand) -> int:
    """What driver, libraries and captured graphs keep."""
    return _OWN_RESERVE_BYTES if demand.runtime == OWN_RUNTIME else _OTHER_RESERVE_BYTES


def _sequence_bytes(shape: ModelShape, demand: Demand, tokens: int) -> int:
    """Of one sequence of that length, in whole blocks."""
    rounded, element_bytes = blocks_for(tokens) * BLOCK_TOKENS, demand.kv_element_bytes(shape)
    draft = rounded * demand.draft.kv_bytes_per_token
    if demand.bounds_windows:
        return _of_stage(shape.kv_bytes_for(rounded, element_bytes, demand.tensor), shape, demand) + draft
    return rounded * shape.kv_bytes_per_token(element_bytes, demand.tensor) + draft


def _tokens(kv_bytes: int, full_bytes: int, window: int) -> int:
    """Tokens in whole blocks; with bounded windows those of sequences of full length."""
    if full_bytes == 0:
        return 0
    rounded = blocks_for(window) * BLOCK_TOKENS
    return kv_bytes * rounded // full_bytes // BLOCK_TOKENS * BLOCK_TOKENS


def _misfit(shape: ModelShape, demand: Demand, gpu: Gpu) -> str | None:
    """What no amount of memory helps with."""
    if demand.pipeline > shape.layers:
        return f"{shape.layers} layers cannot be shared by {demand.pipeline} stages; give a smaller pipeline"
    if shape.heads % demand.tensor:
        return (
            f"{shape.heads} attention heads cannot be shared by {demand.tensor} GPUs; give a tensor that divides them"
        )
    if demand.runtime != OWN_RUNTIME:
        return None
    if gpu.vendor != "nvidia":
        return f"runtime {OWN_RUNTIME} runs on NVIDIA GPUs; choose another runtime for {gpu.name}"
    if gpu.compute_capability is not None and gpu.compute_capability < OLDEST_CAPABILITY:
        major, minor = gpu.compute_capability
        return f"{gpu.name} has compute capability {major}.{minor}; runtime {OWN_RUNTIME} needs 8.0 or later"
    if shape.quantisation is not None:
        return f"runtime {OWN_RUNTIME} serves unquantised weights, these are {shape.quantisation}; use another runtime"
    if shape.latent:
        return f"runtime {OWN_RUNTIME} does not serve latent attention (MLA); choose another runtime"
    return None


class _Cache(NamedTuple):
    """Tokens that the cache holds, the longest sequence, and the bytes of one so long."""

    tokens: int
    window: int
    full_bytes: int


def _shortage(demand: Demand, room_bytes: int, cache: _Cache) -> str | None:
    """Why the memory does not suffice, with the numbers and the way out."""
    if room_bytes <= 0:
        return f"{gib(-room_bytes)} are missing before the first key and value; take larger GPUs or more of them"
    if demand.kv_size_bytes is not None and demand.kv_size_bytes > room_bytes:
        return f"engine.kvCache.size is {gib(demand.kv_size_bytes)}, {gib(room_bytes)} are left; ask for at most that"
    if cache.tokens < max(cache.window, BLOCK_TOKENS):
        return (
            f"one sequence of {cache.window:,} tokens takes {gib(cache.full_bytes)}, {gib(room_bytes)} are left; "
            f"set engine.maxModelLen to at most {cache.tokens}, or take larger GPUs or more of them"
        )
    return None


def gib(size_bytes: float) -> str:
    """For people: 1.5 GiB."""
    return f"{size_bytes / 2**30:.1f} GiB"
