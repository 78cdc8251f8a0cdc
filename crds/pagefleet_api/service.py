"""The InferenceService resource as types; `crd` turns them into the CRD that the API server enforces.

Only fields that work are here. Defaults that the operator fills in are pydantic's; the one that the API
server must write (`spec.replicas`, since `/scale` needs a value there) is marked `SERVER_DEFAULT`.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, Field

from pagefleet_api import (
    adapters,
    disk_cache,
    extent,
    gpus,
    labels,
    quantity,
    resource_limits,
    runtime_rules,
    speculative,
)
from pagefleet_api.agreement import Agreeing
from pagefleet_api.engine import Engine as Engine
from pagefleet_api.gpus import Gpu
from pagefleet_api.model_source import CacheMode, ModelSource
from pagefleet_api.pod_template import PodTemplate
from pagefleet_api.refusals import LINE_CHARACTERS, usable
from pagefleet_api.refusals import InvalidService as InvalidService
from pagefleet_api.rollout import Analysis as Analysis
from pagefleet_api.rollout import Rollout as Rollout
from pagefleet_api.scaling import Autoscaling
from pagefleet_api.schema import SERVER_DEFAULT, Model, Quantity, Seconds, rules
from pagefleet_api.wording import brief


class Resources(Agreeing):
    """Compute resources of the engine container, as in a Pod."""

    model_config = ConfigDict(json_schema_extra=rules(resource_limits.RULE))
    gpu: Gpu = Field(default_factory=Gpu)
    requests: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=resource_limits.MOST_NAMES,
        description="What the scheduler sets aside, for example cpu: 2; not above the limit of the same name.",
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=resource_limits.MOST_NAMES,
        description="What the container may use at most, for example memory: 4Gi.",
    )

    def _refusals(self) -> Iterator[str]:
        yield from resource_limits.above_limits(self.requests, self.limits, "resources.")


class Drain(Model):
    """How a pod leaves."""

    timeout_seconds: Seconds = Field(600, description="Time that running answers get to finish. Default: 600.")


class CapacityPolicy(StrEnum):
    """What is done about a model that is expected not to fit."""

    WARN = "Warn"
    ENFORCE = "Enforce"
    IGNORE = "Ignore"


class Spec(Agreeing):
    """What the user asks for."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *gpus.RULES,
            resource_limits.HOST_CACHE_RULE,
            *disk_cache.RULES,
            *speculative.DRAFT_RULES,
            *runtime_rules.service_cel(),
            *adapters.RUNTIME_RULES,
        )
    )
    model: ModelSource
    engine: Engine = Field(default_factory=Engine)
    resources: Resources = Field(default_factory=Resources)
    pod_template: PodTemplate | None = Field(
        None,
        description="metadata and spec of a Deployment's pod template, merged over the operator's own as a strategic "
        "merge patch; what the operator needs as it is, is refused by name.",
    )
    replicas: int = Field(
        1,
        ge=0,
        le=10_000,
        description="Number of pods; 0 pauses; ignored while autoscaling is set with mode Builtin; written through "
        "/scale by others with mode External.",
        json_schema_extra=SERVER_DEFAULT,
    )
    autoscaling: Autoscaling | None = None
    drain: Drain = Field(default_factory=Drain)
    rollout: Rollout = Field(default_factory=Rollout)
    capacity_policy: CapacityPolicy = Field(
        CapacityPolicy.WARN,
        description="When the model is expected not to fit: Warn says so in the condition Fits, Enforce makes no pod "
        "of it either, Ignore does not look. Default: Warn.",
    )

    @property
    def decides(self) -> bool:
        """The autoscaler looks at the load, whether or not it acts; False for a number that is only followed."""
        return self.autoscaling is not None and not self.autoscaling.external

    @property
    def gpu_count(self) -> int:
        """GPUs of each pod."""
        return gpus.count(self.engine.device, self.engine.parallelism, self.resources.gpu.count)

    @property
    def gpus_of_replica(self) -> int:
        """GPUs of each replica, those that are named in resources.limits alone among them."""
        named = quantity.to_bytes(self.resources.limits.get(self.resources.gpu.resource_name, "0"))
        return (self.gpu_count or min(named, gpus.MOST)) * self.engine.parallelism.pipeline

    @property
    def in_groups(self) -> bool:
        """A replica is a group of pods that share one copy of the model."""
        return self.engine.parallelism.pipeline > 1

    def _refusals(self) -> Iterator[str]:
        engine, model, resources = self.engine, self.model, self.resources
        others = {*resources.limits, *resources.requests}
        yield from gpus.refusals(engine.device, engine.parallelism, resources.gpu, others)
        yield from resource_limits.host_cache_refusals(engine.kv_cache.host_offload, resources.limits)
        disk, adapted = engine.kv_cache.disk_offload, bool(model.adapters)
        yield from disk_cache.refusals(disk, resources.requests, resources.limits, adapters=adapted)
        yield from speculative.draft_refusals(engine.speculative, engine.runtime, model)
        yield from runtime_rules.model_refusals(model.uri, model.served_name, engine.runtime)
        yield from adapters.runtime_refusals(model.adapters, engine.runtime)
        fetched = model.downloads and model.cache.mode is CacheMode.NONE
        tried = self.rollout.analysis is not None
        yield from gpus.group_refusals(engine.parallelism, tried=tried, downloaded=fetched)
        yield from runtime_rules.metric_refusals(self._chosen_metrics, engine.runtime)

    @property
    def _chosen_metrics(self) -> tuple[str, ...]:
        """What the user chose; of the default ones those that are not told have no say."""
        scaling = self.autoscaling
        chosen = scaling.metrics if scaling is not None and "metrics" in scaling.model_fields_set else ()
        return tuple(metric.type for metric in chosen)


class InferenceService(Model):
    """One service, parsed: what the operator works with."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool
    scaled_by: str | None = None
    """Who wrote `spec.replicas` through the scale subresource last, by its field manager's name; None where nobody
    did, or the spec has been written since."""
    spec: Spec

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Read an object as the API server gives it.

        Raises InvalidService, with one line a field, when the spec cannot be used.
        """
        meta, given = body["metadata"], body.get("spec") or {}
        for fault in extent.faults(given):
            raise InvalidService(brief(fault, LINE_CHARACTERS))
        spec = usable(Spec, given, "spec")
        taken = adapters.served_refusals(spec.model.adapters, spec.model.served_name or meta["name"])
        if refusals := [*taken, *extent.kept_faults(given)]:
            raise InvalidService("\n".join(refusals))
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            generation=meta.get("generation", 1),
            deleting=meta.get("deletionTimestamp") is not None,
            scaled_by=_scaled_by(meta),
            spec=spec,
        )

    @property
    def parts(self) -> tuple["InferenceService", ...]:
        """The service once for each thing that comes from one place, its model first: each has that as its model."""
        if not self.spec.model.adapters and self.spec.model.draft is None:
            return (self,)
        different: dict[str, ModelSource] = {}
        for source in self.spec.model.sources:
            different.setdefault(source.key, source)
        specs = (self.spec.model_copy(update={"model": source}) for source in different.values())
        return tuple(self.model_copy(update={"spec": spec}) for spec in specs)

    @property
    def child_name(self) -> str:
        """Name of the Deployment, the Service and the ServiceAccount."""
        return labels.child_name(self.name)

    @property
    def served_name(self) -> str:
        """The model name that clients use."""
        return self.spec.model.served_name or self.name


def _scaled_by(meta: Mapping[str, Any]) -> str | None:
    managed = [entry for entry in meta.get("managedFields") or () if entry.get("subresource") == "scale"]
    newest: Mapping[str, Any] = max(managed, key=lambda entry: str(entry.get("time", "")), default={})
    return newest.get("manager")
