"""The status of an InferenceService as types. The operator's worker is its only writer."""

from typing import Any, Literal

from pydantic import Field

from pagefleet_api.schema import Model

MESSAGE_CHARACTERS = 32_768
"""Of a condition, at most; as in `metav1.Condition`."""


class Condition(Model):
    """As `metav1.Condition`."""

    type: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=316, description="What is said.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=1024, description="Why, as one word that programs may match on."
    )
    message: str = Field("", max_length=MESSAGE_CHARACTERS, description="Why, in words and numbers.")
    observed_generation: int = Field(0, ge=0, description="The generation of the spec that it is said of.")
    last_transition_time: str = Field(
        json_schema_extra={"format": "date-time"}, description="When the status last changed."
    )


class MetricReading(Model):
    """One metric as a decision saw it."""

    type: str = Field(description="The metric's type, as in spec.autoscaling.metrics.")
    value: str | None = Field(None, description="Demand over all pods; absent when the metric is missing.")
    target: str = Field(description="What each pod should carry.")
    proposal: int | None = Field(None, description="Replicas that this metric asks for.")


class Decision(Model):
    """Why the number of replicas is what it is: the inputs, each clamp in order, and the result."""

    time: str = Field(json_schema_extra={"format": "date-time"}, description="When it was made.")
    before: int = Field(description="Replicas that were wanted before it.")
    desired: int = Field(description="Replicas that are wanted since.")
    reason: str = Field(description="What moved or kept the number, as one word.")
    message: str = Field(description="The same in words and numbers.")
    pods_seen: int = Field(description="Pods with a fresh, plausible sample.")
    pods_missing: int = Field(description="Pods that may hold load and gave none.")
    readings: tuple[MetricReading, ...] = Field((), description="The metrics as they were.")
    clamps: tuple[str, ...] = Field((), description="Each step that changed or kept the answer, in order.")


class AutoscalingStatus(Model):
    """What the autoscaler wants and why."""

    desired_replicas: int | None = Field(None, description="Replicas that are wanted.")
    last_scale_time: str | None = Field(
        None, json_schema_extra={"format": "date-time"}, description="When that number last changed."
    )
    last_decision: Decision | None = None
    history: tuple[Decision, ...] = Field((), max_length=10, description="Latest changes, newest first.")


class EstimatedCapacity(Model):
    """What a pod is expected to hold, from the model's files and the type of GPU."""

    gpu: str = Field(description="The type of GPU that it is for, or cpu.")
    weights_bytes: int = Field(description="The whole model's weights.")
    kv_bytes_per_token: int = Field(description="Keys and values of one token in all layers.")
    kv_tokens: int = Field(description="Tokens that the KV cache of a pod holds.")
    max_model_len: int = Field(description="Longest prompt plus answer, in tokens.")


class MeasuredCapacity(Model):
    """What running pods report."""

    kv_blocks: int = Field(description="Blocks of the KV cache, of the pod that has fewest.")
    kv_tokens: int = Field(description="Tokens that these hold.")


class Capacity(Model):
    """How much a pod holds."""

    estimated: EstimatedCapacity | None = None
    measured: MeasuredCapacity | None = None
    estimate_error_percent: str | None = Field(
        None, description="How far estimated.kvTokens is from the measured, in percent of that, for example -0.3."
    )


class StartPhases(Model):
    """Medians of the parts of a start, in whole seconds."""

    schedule_seconds: int = Field(description="Until the scheduler had a node for the pod.")
    image_seconds: int = Field(description="Until its container ran: image, volumes, the model on the node.")
    weights_seconds: int | None = Field(
        None, description="Until the engine had its weights; absent where it does not tell, then part of warmUpSeconds."
    )
    warm_up_seconds: int = Field(description="Until the pod was ready.")


class StartTimes(Model):
    """How long starts took."""

    starts: int = Field(description="Starts that were seen from their beginning, at most the latest 20.")
    p50_seconds: int = Field(description="Half of them took no longer.")
    p95_seconds: int = Field(description="95 of 100 took no longer.")
    phases: StartPhases


class PoolStart(StartTimes):
    """How long pods took to start on the nodes of one pool."""

    pool: str = Field(description="The pool's name, by the nodes' labels, or else their type of machine or GPU.")


class ColdStart(StartTimes):
    """How long pods took from their creation until they were ready, of the latest starts."""

    pools: tuple[PoolStart, ...] = Field(
        (),
        description="By pool of nodes, at most 8; the one where a pod started last comes first.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pool"]},
    )

    @property
    def expected(self) -> StartTimes:
        """What the next start may take: as in the pool where pods landed last."""
        return self.pools[0] if self.pools else self


class Status(Model):
    """What is, as the operator last saw it."""

    observed_generation: int | None = Field(None, description="The generation of the spec that this is about.")
    replicas: int = Field(0, ge=0, description="Pods that exist and are not draining.")
    ready_replicas: int = Field(0, description="Pods that get requests.")
    updated_replicas: int = Field(0, description="Pods of the latest template.")
    draining_replicas: int = Field(0, description="Pods that finish their answers before they go.")
    selector: str | None = Field(None, description="Labels of the pods, for the scale subresource.")
    url: str | None = Field(None, description="Base URL for OpenAI clients inside the cluster.")
    ready: str | None = Field(None, description="Ready of wanted pods, for example 2/3.")
    targets: str | None = Field(None, description="Metrics against their targets, for example kv 40/75 %, queue 2/4.")
    gpus: int | None = Field(None, description="GPUs of each replica; 0 on a CPU.")
    capacity: Capacity | None = None
    autoscaling: AutoscalingStatus | None = None
    cold_start: ColdStart | None = None
    conditions: tuple[Condition, ...] = Field(
        (),
        description="What is true now; docs/troubleshooting.md has every reason.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )

    def wire(self) -> dict[str, Any]:
        """As JSON for the API server; absent values are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
