"""The InferenceService resource as types; `crd` turns them into the CRD that the API server enforces.

Only fields that work are here. Defaults that the operator fills in are pydantic's; the one that the API
server must write (`spec.replicas`, since `/scale` needs a value there) is marked `SERVER_DEFAULT`.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from pagefleet_api import gpus, labels
from pagefleet_api.gpus import Device, Gpu, Parallelism
from pagefleet_api.model_source import ModelSource
from pagefleet_api.pod_template import PodTemplate
from pagefleet_api.scaling import Autoscaling
from pagefleet_api.schema import (
    AUTO,
    SERVER_DEFAULT,
    Model,
    Name,
    Quantity,
    Seconds,
    SecretName,
    Share,
    Text,
    Within,
    rules,
)

CacheSize = Annotated[Text, Within("engine.kvCache.size", least="1Mi", most="1Pi")]


class InvalidService(ValueError):
    """An object that is not a usable InferenceService; the text names each field and what it takes."""


class KvCache(Model):
    """The paged KV cache of each pod."""

    size: CacheSize | None = Field(
        None, description="Memory for keys and values, for example 512Mi. Required when engine.device is cpu."
    )


class KeyRef(Model):
    """One key of a ConfigMap in the service's namespace."""

    name: Name = Field(description="Name of the ConfigMap.")
    key: Name = Field(description="Key whose value is the template.")


class ChatTemplate(Model):
    """A Jinja chat template to use in place of the model's own."""

    config_map_key_ref: KeyRef


class Runtime(StrEnum):
    """Engines that this version can run."""

    PAGEFLEET = "pagefleet"


class Engine(Model):
    """The inference server in each pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.device) || self.device != 'cpu' || (has(self.kvCache) && has(self.kvCache.size))",
                "engine.kvCache.size is required when engine.device is cpu, for example 512Mi",
            ),
        )
    )
    runtime: Runtime = Field(Runtime.PAGEFLEET, description="The engine. Default: pagefleet.")
    image: str | None = Field(
        None, min_length=1, max_length=1024, description="Image of the engine. Default: the chart's engineImage."
    )
    device: Device = Field(
        Device.AUTO, description="cuda, cpu, or auto: a GPU where the container has one. Default: auto."
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Number format of weights and cache; auto measures on a CPU. Default: auto."
    )
    max_model_len: int | None = Field(
        None, ge=16, le=16_777_216, description="Longest prompt plus answer, in tokens. Default: the model's."
    )
    max_num_seqs: int = Field(256, ge=1, le=65_536, description="Requests that run at the same time. Default: 256.")
    max_num_batched_tokens: int | None = Field(
        None, ge=16, le=1_048_576, description="Tokens computed in one step. Default: 8192, on a CPU 512."
    )
    max_queued_requests: int = Field(
        1024, ge=0, le=1_000_000, description="Requests that may wait; one more is refused with 429. Default: 1024."
    )
    kv_cache: KvCache = Field(default_factory=KvCache)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    chat_template: ChatTemplate | None = None
    api_keys_secret_ref: SecretName | None = Field(
        None, description="Each value of this Secret is an API key; it reaches the engine through its environment."
    )


class Resources(Model):
    """Compute resources of the engine container, as in a Pod."""

    gpu: Gpu = Field(default_factory=Gpu)
    requests: dict[str, Quantity] = Field(
        default_factory=dict, description="What the scheduler sets aside, for example cpu: 2."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict, description="What the container may use at most, for example memory: 4Gi."
    )


class Drain(Model):
    """How a pod leaves."""

    timeout_seconds: Seconds = Field(600, description="Time that running answers get to finish. Default: 600.")


class Rollout(Model):
    """How a change of the pods is rolled out."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!(has(self.maxSurge) && has(self.maxUnavailable) && string(self.maxSurge) in ['0', '0%'] "
                "&& string(self.maxUnavailable) in ['0', '0%'])",
                "rollout.maxSurge and rollout.maxUnavailable must not both be 0: no pod could ever be replaced",
            )
        )
    )
    max_surge: Share = Field(
        AUTO, description="Pods above the wanted number. Auto: 1 while it can be placed, else 0. Default: Auto."
    )
    max_unavailable: Share = Field(
        AUTO,
        description="Pods below the wanted number. Auto: 0 while a surge pod can be placed, else 1. Default: Auto.",
    )
    progress_deadline_seconds: int = Field(
        3600, ge=1, le=86_400, description="Without progress for so long, the service is Stalled. Default: 3600."
    )


class Spec(Model):
    """What the user asks for."""

    model_config = ConfigDict(json_schema_extra=rules(*gpus.RULES))
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
        description="Fixed number of pods; 0 pauses; ignored while autoscaling is set.",
        json_schema_extra=SERVER_DEFAULT,
    )
    autoscaling: Autoscaling | None = None
    drain: Drain = Field(default_factory=Drain)
    rollout: Rollout = Field(default_factory=Rollout)

    @property
    def gpu_count(self) -> int:
        """GPUs of each pod."""
        return gpus.count(self.engine.device, self.engine.parallelism.tensor, self.resources.gpu.count)

    @model_validator(mode="after")
    def _gpus_agree(self) -> Self:
        others = {*self.resources.limits, *self.resources.requests}
        refusal = gpus.refusal(self.engine.device, self.engine.parallelism.tensor, self.resources.gpu, others)
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
    spec: Spec

    @classmethod
    def parse(cls, body: Any) -> Self:
        """Read an object as the API server gives it.

        Raises InvalidService, with one line a field, when the spec cannot be used.
        """
        meta = body["metadata"]
        try:
            spec = Spec.model_validate(body.get("spec") or {})
        except ValidationError as error:
            raise InvalidService(describe(error, "spec")) from error
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            generation=meta.get("generation", 1),
            deleting=meta.get("deletionTimestamp") is not None,
            spec=spec,
        )

    @property
    def child_name(self) -> str:
        """Name of the Deployment, the Service and the ServiceAccount."""
        return labels.child_name(self.name)

    @property
    def served_name(self) -> str:
        """The model name that clients use."""
        return self.spec.model.served_name or self.name


def describe(error: ValidationError, root: str) -> str:
    """One line for each problem: the field's path, what is wrong, and the value that was given."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in (root, *problem["loc"]))
        told = problem["type"] == "missing" or not problem["loc"]  # of the whole spec: the words name the values
        given = "" if told else f" (given: {problem['input']!r})"
        lines.append(f"{path}: {problem['msg']}{given}")
    return "\n".join(lines)
