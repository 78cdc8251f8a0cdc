"""`spec.engine`: the inference server in each pod, as types."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue

from pagefleet_api import resource_limits, runtime_rules, scheduling, speculative
from pagefleet_api.agreement import Agreeing
from pagefleet_api.custom_engine import Argument, CustomEngine
from pagefleet_api.disk_cache import HOST_RULE, NEEDS_HOST, DiskSize
from pagefleet_api.gpus import Device, Parallelism
from pagefleet_api.runtimes import Runtime
from pagefleet_api.scheduling import Scheduling
from pagefleet_api.schema import Model, Name, ObjectName, SecretName, Shaped, Text, Within, joint, rules
from pagefleet_api.speculative import Speculative

_SHORT: dict[str, JsonValue] = {"maxLength": 16}
"""For the API server, which bounds the cost of a rule by the longest that a value may be, not by its choices."""

CacheSize = Annotated[Text, Within(least="1Mi", most="1Pi", example="512Mi")]
Utilization = Annotated[Text, Within(least="0.05", most="1")]
HostMemory = Annotated[Text, Within(least="1Gi", most="64Ti", example="32Gi")]
Method = Annotated[
    str,
    Field(max_length=63),
    Shaped(
        r"^[a-z0-9][a-z0-9_-]*$", "lower-case letters, digits, _ and -, with a letter or digit first, for example fp8"
    ),
]


class KvCache(Agreeing):
    """The paged KV cache of each pod."""

    model_config = ConfigDict(json_schema_extra=rules(HOST_RULE))
    size: CacheSize | None = Field(
        None, description="Memory for keys and values, for example 512Mi. Required when engine.device is cpu."
    )
    memory_utilization: Utilization | None = Field(
        None,
        description='Share of the GPU\'s memory that the engine may use in all, for example "0.85". Default: '
        "the engine's.",
    )
    dtype: Literal["auto", "fp8"] | None = Field(
        None,
        description="Number format of keys and values; auto is the model's. Default: auto.",
        json_schema_extra=_SHORT,
    )
    block_size: Literal[1, 8, 16, 32, 64, 128] | None = Field(
        None, description="Tokens of each block. Default: the engine's."
    )
    host_offload: HostMemory | None = Field(
        None,
        description="Memory of each pod, beside what else it takes, for blocks that leave the GPU, for example 32Gi; "
        "resources.limits.memory must have room for it. Default: none.",
    )
    disk_offload: DiskSize | None = Field(
        None,
        description="Disk of each pod's node for blocks that leave hostOffload, for example 200Gi; they are gone with "
        "the pod. Pods request so much ephemeral-storage where resources does not say how much. Default: none.",
    )

    def _refusals(self) -> Iterator[str]:
        if self.disk_offload is not None and self.host_offload is None:
            yield NEEDS_HOST.format(self.disk_offload)


class KeyRef(Model):
    """One key of a ConfigMap in the service's namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap.")
    key: Name = Field(description="Key whose value is the template.")


class ChatTemplate(Model):
    """A Jinja chat template to use in place of the model's own."""

    config_map_key_ref: KeyRef


_NO_SIZE = "engine.kvCache.size is required when engine.device is cpu, for example 512Mi"
_NO_HOST = (
    "engine.kvCache.hostOffload {} is for a cache on a GPU, not for engine.device cpu; use engine.kvCache.size there"
)


class Engine(Agreeing):
    """The inference server in each pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            joint(
                "!has(self.device) || self.device != 'cpu' || (has(self.kvCache) && has(self.kvCache.size)) "
                "|| (has(self.runtime) && self.runtime == 'custom')",
                _NO_SIZE,
                field="kvCache.size",
            ),
            joint(
                "!has(self.kvCache) || !has(self.kvCache.hostOffload) || !has(self.device) || self.device != 'cpu'",
                _NO_HOST,
                "self.kvCache.hostOffload",
                field="kvCache.hostOffload",
            ),
            resource_limits.HOST_SHARES_RULE,
            *runtime_rules.cel(),
            *speculative.RULES,
            *scheduling.RULES,
        )
    )
    runtime: Runtime = Field(
        Runtime.PAGEFLEET,
        description="The engine; docs/runtimes.md has what each can do. Default: pagefleet.",
        json_schema_extra=_SHORT,
    )
    image: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Image of the engine; required for every runtime but pagefleet. Default: the chart's engineImage.",
    )
    device: Device = Field(
        Device.AUTO,
        description="cuda, cpu, auto (a GPU where the container has one), or paced: nothing is computed, steps take a "
        "GPU's time and tokens are random, to rehearse everything around them. Default: auto.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Number format of weights and cache; auto measures on a CPU: pods may differ. Default: auto.",
        json_schema_extra=_SHORT,
    )
    quantization: Annotated[
        Method | None, BeforeValidator(lambda value: None if value == runtime_rules.NO_METHOD else value)
    ] = Field(
        None,
        description="The engine's own name of a method that it quantizes the weights by as it loads them, or none. "
        "Default: none.",
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
    scheduling: Scheduling = Field(default_factory=Scheduling)
    speculative: Speculative = Field(default_factory=Speculative)
    chat_template: ChatTemplate | None = None
    api_keys_secret_ref: SecretName | None = Field(
        None, description="Each value of this Secret is an API key; it reaches the engine through its environment."
    )
    extra_args: tuple[Argument, ...] = Field(
        (), max_length=64, description="Further arguments of the engine, after those that the operator gives."
    )
    custom: CustomEngine | None = Field(None, description="Required for runtime custom.")

    def _refusals(self) -> Iterator[str]:
        given = self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        yield from runtime_rules.refusals(given)
        stages, block_size = self.parallelism.pipeline, self.kv_cache.block_size
        yield from speculative.refusals(self.speculative, self.runtime, pipeline=stages, block_size=block_size)
        yield from scheduling.refusals(self.scheduling.policy, self.runtime)
        if self.runtime is Runtime.SGLANG:
            yield from resource_limits.host_shares_refusals(self.kv_cache.host_offload, self.parallelism.tensor)
        if self.device is Device.CPU and self.kv_cache.host_offload is not None:
            yield _NO_HOST.format(self.kv_cache.host_offload)
        if self.device is Device.CPU and self.kv_cache.size is None and self.runtime is not Runtime.CUSTOM:
            yield _NO_SIZE
