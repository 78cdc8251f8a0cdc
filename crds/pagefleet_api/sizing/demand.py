"""From the resource to what the fit is computed for: the one place that knows the resource's names. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pagefleet_api import quantity
from pagefleet_api.gpus import WITHOUT_GPU
from pagefleet_api.service import Spec
from pagefleet_api.sizing.adapters import DEFAULT_RANK
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.sizing.fit import Demand, DraftSize

_NOTHING_READ: Mapping[str, int] = MappingProxyType({})
DEFAULT_UTILISATION = 0.90
DEFAULT_BATCH_TOKENS, DEFAULT_CPU_BATCH_TOKENS = 8192, 512


def demand_of(spec: Spec, ranks: Mapping[str, int] = _NOTHING_READ, draft: ModelFacts | None = None) -> Demand:
    """What `spec` asks for of each replica. ranks: of adapters, by name, as their files have them."""
    demand = _without_draft(spec, ranks)
    return demand if draft is None else replace(demand, draft=_size(draft, demand))


def _size(draft: ModelFacts, demand: Demand) -> DraftSize:
    """Shared out as the model is, and run in the same formats; weights as the files have them."""
    weights = draft.stored(demand.element_bytes(draft.shape)).total_bytes
    per_token = draft.shape.kv_bytes_per_token(demand.kv_element_bytes(draft.shape), demand.tensor)
    return DraftSize(-(-weights // demand.tensor), per_token)


def _without_draft(spec: Spec, ranks: Mapping[str, int]) -> Demand:
    engine = spec.engine
    on_cpu = engine.device in WITHOUT_GPU
    size, share = engine.kv_cache.size, engine.kv_cache.memory_utilization
    return Demand(
        runtime=engine.runtime.value,
        device=engine.device.value,
        dtype=engine.dtype,
        kv_dtype=engine.kv_cache.dtype or "auto",
        quantisation=engine.quantization,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens
        or (DEFAULT_CPU_BATCH_TOKENS if on_cpu else DEFAULT_BATCH_TOKENS),
        memory_utilisation=DEFAULT_UTILISATION if share is None else float(quantity.parse(share)),
        tensor=engine.parallelism.tensor,
        pipeline=engine.parallelism.pipeline,
        kv_size_bytes=None if size is None else quantity.to_bytes(size),
        adapter_ranks=tuple(adapter.rank or ranks.get(adapter.name) or DEFAULT_RANK for adapter in spec.model.adapters),
    )


def memory_limit_bytes(spec: Spec) -> int | None:
    """Of the engine's container."""
    limit = spec.resources.limits.get("memory")
    return None if limit is None else quantity.to_bytes(limit)
