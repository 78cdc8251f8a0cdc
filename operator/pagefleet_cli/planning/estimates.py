"""A service on each GPU type. Pure, but for the list of types that the package carries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pagefleet_api.service import InferenceService
from pagefleet_api.sizing import gpu_types
from pagefleet_api.sizing.demand import demand_of, memory_limit_bytes
from pagefleet_api.sizing.facts import ModelFacts
from pagefleet_api.sizing.fit import Demand, Fit, fit, fit_cpu
from pagefleet_api.sizing.weights import Weights
from pagefleet_cli.errors import InputWrong


class ServicePlan(NamedTuple):
    """One service with what it takes anywhere, and its fit on each type."""

    service: InferenceService
    demand: Demand
    weights: Weights
    kv_bytes_per_token: int
    fits: tuple[Fit, ...]
    adapters_unknown: tuple[str, ...]
    """Names of the adapters whose rank nobody has said, and no file that could be read: one is assumed for each."""

    @property
    def fits_somewhere(self) -> bool:
        """Whether one of the types will do."""
        return any(each.fits for each in self.fits)

    @property
    def name(self) -> str:
        """namespace/name."""
        return f"{self.service.namespace}/{self.service.name}"


def chosen(names: Sequence[str]) -> tuple[gpu_types.Gpu, ...]:
    """The types of these names, or all. Raises InputWrong for a name that is not known."""
    try:
        return tuple(gpu_types.named(name, gpu_types.known()) for name in names) or gpu_types.known()
    except gpu_types.GpuUnknown as error:
        raise InputWrong(f"--gpu: {error}") from error


def of_service(
    service: InferenceService,
    facts: ModelFacts,
    ranks: Mapping[str, int],
    types: Sequence[gpu_types.Gpu],
    draft: ModelFacts | None = None,
) -> ServicePlan:
    """On a CPU there is one fit, in the container's memory limit. ranks: of adapters, by name, as their files say.

    draft: of the model that guesses, where there is one.
    """
    demand = demand_of(service.spec, ranks, draft)
    weights = facts.weights(demand)
    if demand.device == "cpu":
        fits: tuple[Fit, ...] = (fit_cpu(facts.shape, weights, demand, memory_limit_bytes(service.spec)),)
    else:
        fits = tuple(fit(facts.shape, weights, demand, gpu) for gpu in types)
    per_token = facts.shape.kv_bytes_per_token(demand.kv_element_bytes(facts.shape))
    unknown = tuple(each.name for each in service.spec.model.adapters if each.rank is None and each.name not in ranks)
    return ServicePlan(service, demand, weights, per_token, fits, unknown)
