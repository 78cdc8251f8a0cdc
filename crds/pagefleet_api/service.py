"""The InferenceService resource as types; `crd` turns them into the CRD that the API server enforces.

Only fields that work are here. Defaults that the operator fills in are pydantic's; the one that the API
server must write (`spec.replicas`, since `/scale` needs a value there) is marked `SERVER_DEFAULT`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

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
from pagefleet_api.engine import Engine as Engine
from pagefleet_api.gpus import Gpu
from pagefleet_api.model_source import CacheMode, ModelSource
from pagefleet_api.pod_template import PodTemplate
from pagefleet_api.rollout import Analysis as Analysis
from pagefleet_api.rollout import Rollout as Rollout
from pagefleet_api.runtimes import Runtime
from pagefleet_api.scaling import Autoscaling
from pagefleet_api.schema import SERVER_DEFAULT, Model, Quantity, Seconds, rules
from pagefleet_api.wording import brief, place, shown


class InvalidService(ValueError):
    """An object that is not a usable InferenceService; the text names each field and what it takes."""


class Resources(Model):
    """Compute resources of the engine container, as in a Pod."""

    model_config = ConfigDict(json_schema_extra=rules(*resource_limits.RULES))
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

    @model_validator(mode="after")
    def _requests_are_within_limits(self) -> Self:
        for fault in resource_limits.above_limits(self.requests, self.limits, "resources."):
            raise ValueError(fault)
        return self


class Drain(Model):
    """How a pod leaves."""

    timeout_seconds: Seconds = Field(600, description="Time that running answers get to finish. Default: 600.")


class CapacityPolicy(StrEnum):
    """What is done about a model that is expected not to fit."""

    WARN = "Warn"
    ENFORCE = "Enforce"
    IGNORE = "Ignore"


class Spec(Model):
    """What the user asks for."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *gpus.RULES,
            resource_limits.HOST_CACHE_RULE,
            *disk_cache.RULES,
            *speculative.DRAFT_RULES,
            runtime_rules.MODEL_IN_IMAGE,
            runtime_rules.NAME_WITHOUT_COLON,
            *adapters.RUNTIME_RULES,
            *runtime_rules.METRIC_RULES,
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

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        others = {*self.resources.limits, *self.resources.requests}
        refusal = gpus.refusal(self.engine.device, self.engine.parallelism, self.resources.gpu, others)
        if refusal is not None:
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _host_cache_is_in_the_limit(self) -> Self:
        host, ranks = self.engine.kv_cache.host_offload, self.engine.parallelism.tensor
        refusal = resource_limits.host_cache_refusal(host, self.resources.limits)
        if self.engine.runtime is Runtime.SGLANG:
            refusal = refusal or resource_limits.host_shares_refusal(host, ranks)
        if refusal is not None:
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _engine_has_what_it_needs(self) -> Self:
        engine, model, resources = self.engine, self.model, self.resources
        disk, adapted = engine.kv_cache.disk_offload, bool(model.adapters)
        full = disk_cache.refusals(disk, resources.requests, resources.limits, adapters=adapted)
        for refusal in (*full, *speculative.draft_refusals(engine.speculative, engine.runtime, model)):
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _model_fits_the_runtime(self) -> Self:
        runtime = self.engine.runtime
        refusal = runtime_rules.model_refusal(self.model.uri, self.model.served_name, runtime)
        refusal = refusal or adapters.runtime_refusal(self.model.adapters, runtime)
        if refusal is not None:
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _trial_has_single_pods(self) -> Self:
        if self.in_groups and self.rollout.analysis is not None:
            raise ValueError(gpus.NO_TRIAL)
        return self

    @model_validator(mode="after")
    def _groups_find_their_model(self) -> Self:
        if self.in_groups and self.model.downloads and self.model.cache.mode is CacheMode.NONE:
            raise ValueError(gpus.NO_DOWNLOAD)
        return self

    @model_validator(mode="after")
    def _metrics_are_told(self) -> Self:
        """What the user chose; of the default ones those that are not told have no say."""
        scaling = self.autoscaling
        chosen = scaling.metrics if scaling is not None and "metrics" in scaling.model_fields_set else ()
        refusal = runtime_rules.metric_refusal([metric.type for metric in chosen], self.engine.runtime)
        if refusal is not None:
            raise ValueError(refusal)
        return self


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
            raise InvalidService(brief(fault, _LINE_CHARACTERS))
        try:
            spec = Spec.model_validate(given)
        except ValidationError as error:
            raise InvalidService(describe(error, "spec")) from error
        taken = adapters.served_refusal(spec.model.adapters, spec.model.served_name or meta["name"])
        for refusal in filter(None, (taken, extent.kept_fault(given))):
            raise InvalidService(refusal)
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


_LINES, _LINE_CHARACTERS = 20, 1000
"""Of words about faults: a condition takes 32,768 characters, and what a user gave may be in each line."""


def describe(error: ValidationError, root: str) -> str:
    """One line for each problem: the field's path, what is wrong, and the value that was given.

    Of very many problems the first, and long values without their middle.
    """
    lines = []
    problems = error.errors(include_url=False, include_context=False)
    inside = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
    for problem in problems:
        if problem["type"] == "too_short" and problem["loc"] in inside:
            continue  # it was counted without the items that the other lines are about
        path = place(problem["loc"], root)
        told = problem["type"] == "missing" or isinstance(problem["input"], dict)  # of several fields: the words do
        given = "" if told else f" (given: {shown(problem['input'])})"
        words = problem["msg"].removeprefix("Value error, ").replace("Tuple should", "the list should")
        words = words.replace("Input should be", "must be").replace("Field required", "is required")
        lines.append(brief(f"{path}: {words.replace(' after validation', '')}{given}", _LINE_CHARACTERS))
    more = [f"{len(lines) - _LINES} more like these"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *more])
