"""Whether the model fits, from what is known before a pod runs and from what pods report. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from pagefleet_api import gpus
from pagefleet_api.reasons import Reason
from pagefleet_api.runtimes import Runtime
from pagefleet_api.service import CapacityPolicy, InferenceService, Spec
from pagefleet_api.sizing.adapters import DEFAULT_RANK, vllm_rank
from pagefleet_api.sizing.demand import demand_of, memory_limit_bytes
from pagefleet_api.sizing.fit import Fit, fit, fit_cpu
from pagefleet_api.status import Capacity, EstimatedCapacity, MeasuredCapacity
from pagefleet_api.wording import counted
from pagefleet_operator.autoscaling.values import Verdict
from pagefleet_operator.facts.knowledge import GpuNodes, Knowledge
from pagefleet_operator.facts.observed import Observed


class Judgement(NamedTuple):
    """What to say of the model's size. `verdict` is None when the user wants nobody to look.

    `holds_back`: no pod may be made of this spec.
    """

    verdict: Verdict | None
    capacity: Capacity | None
    holds_back: bool = False


UNJUDGED = Judgement(None, None)


def judge(service: InferenceService, observed: Observed, before: Capacity | None, *, made: bool) -> Judgement:
    """`before` is the capacity as reported last; `made`: pods were already made of this spec.

    What was measured stays reported while the spec stays, pods or not.
    """
    knowledge, policy = observed.knowledge, service.spec.capacity_policy
    measured = _measured(observed) or (before.measured if before is not None else None) if made else None
    if policy is CapacityPolicy.IGNORE:
        return Judgement(None, _capacity(None, measured))
    fits = _fits(service.spec, knowledge)
    verdict = _verdict(service.spec, knowledge, fits, measured)
    too_early = knowledge.reading or verdict.status is False
    holds_back = policy is CapacityPolicy.ENFORCE and not made and too_early
    return Judgement(verdict, _capacity(_estimated(service.spec, knowledge, fits), measured), holds_back)


class _OnType(NamedTuple):
    fit: Fit
    nodes: int | None
    """How many have such GPUs; None on a CPU."""


def _fits(spec: Spec, knowledge: Knowledge) -> list[_OnType]:
    """On each type that nodes have, or in the container's memory on a CPU; empty where something is not known."""
    facts = knowledge.facts
    if facts is None:
        return []
    demand = demand_of(spec, knowledge.ranks, knowledge.draft)
    weights = facts.weights(demand)
    if on_cpu(spec):
        return [_OnType(fit_cpu(facts.shape, weights, demand, memory_limit_bytes(spec)), None)]
    types: Iterable[GpuNodes] = knowledge.gpus or ()
    return [_OnType(fit(facts.shape, weights, demand, gpu), nodes) for gpu, nodes in types]


def on_cpu(spec: Spec) -> bool:
    """Whether the pods get no GPU."""
    return spec.gpu_count == 0 and gpus.RESOURCE not in spec.resources.limits


def _verdict(spec: Spec, knowledge: Knowledge, fits: list[_OnType], measured: MeasuredCapacity | None) -> Verdict:
    if measured is not None:
        words = f"a pod holds {measured.kv_tokens:,} tokens in {measured.kv_blocks:,} blocks"
        return Verdict(True, Reason.MEASURED, words)
    if knowledge.facts is None:
        reason = Reason.READING_MODEL if knowledge.reading else Reason.MODEL_UNKNOWN
        return Verdict(None, reason, knowledge.unknown)
    if (unroomed := _unroomed(spec, knowledge)) is not None:
        return Verdict(False, Reason.TOO_LARGE, unroomed)
    if not fits:
        name = spec.resources.gpu.resource_name
        words = f"no node that has {name} tells its type ({name}.product, {name}.memory), or nodes may not be read"
        return Verdict(None, Reason.GPU_TYPE_UNKNOWN, words)
    good = [each for each in fits if each.fit.fits]
    words = "; ".join(_words(each) for each in (good or fits))
    return Verdict(True, Reason.ESTIMATED, words) if good else Verdict(False, Reason.TOO_LARGE, words)


def _unroomed(spec: Spec, knowledge: Knowledge) -> str | None:
    """An adapter whose rank is above what vLLM is told, which would end its start; None without one."""
    if spec.engine.runtime is not Runtime.VLLM or not knowledge.ranks:
        return None
    room = vllm_rank([adapter.rank or DEFAULT_RANK for adapter in spec.model.adapters])
    for name, rank in knowledge.ranks.items():
        if rank > room:
            instead = f"set model.adapters[{name}].rank to {rank}"
            return f"adapter {name} has rank {rank}, and vLLM is to set room aside for {room}: {instead}"
    return None


def _words(each: _OnType) -> str:
    found, nodes = each.fit, "" if each.nodes is None else f" ({counted(each.nodes, 'node')})"
    if found.reason is not None:
        return f"{found.gpu}{nodes}: {found.reason}"
    return f"{found.gpu}{nodes}: {found.kv_tokens:,} tokens expected; {found.breakdown}"


def _measured(observed: Observed) -> MeasuredCapacity | None:
    """Of the pod that has least; None while pods of two templates run, as either may have it."""
    samples = (observed.sample(pod) for pod in observed.pods if pod.ready and not observed.two_templates)
    blocks = ((sample.load.blocks_total or 0, sample.load.block_size or 0) for sample in samples if sample is not None)
    sizes = [(total * size, total) for total, size in blocks if total * size]
    if not sizes:
        return None
    tokens, total = min(sizes)
    return MeasuredCapacity(kv_blocks=total, kv_tokens=tokens)


def _capacity(estimated: EstimatedCapacity | None, measured: MeasuredCapacity | None) -> Capacity | None:
    if estimated is None and measured is None:
        return None
    error = None
    if estimated is not None and measured is not None:
        error = f"{100 * (estimated.kv_tokens / measured.kv_tokens - 1):.1f}"
    return Capacity(estimated=estimated, measured=measured, estimate_error_percent=error)


def _estimated(spec: Spec, knowledge: Knowledge, fits: list[_OnType]) -> EstimatedCapacity | None:
    """On the least type that suffices, as the scheduler may choose it; else on the one with most room."""
    facts = knowledge.facts
    if facts is None or not fits:
        return None
    enough = [each.fit for each in fits if each.fit.fits]
    found = min(enough, key=_size) if enough else max((each.fit for each in fits), key=_size)
    demand = demand_of(spec, knowledge.ranks, knowledge.draft)
    return EstimatedCapacity(
        gpu=found.gpu,
        weights_bytes=facts.weights(demand).total_bytes,
        kv_bytes_per_token=facts.shape.kv_bytes_per_token(demand.kv_element_bytes(facts.shape)),
        kv_tokens=found.kv_tokens,
        max_model_len=found.window_tokens,
    )


def _size(found: Fit) -> int:
    return found.budget_bytes
