"""The status of an InferenceService as types. The operator's worker is its only writer."""

from typing import Any, Literal

from pydantic import Field

from pagefleet_api.service import Model


class Condition(Model):
    """As `metav1.Condition`."""

    type: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=316)
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=1024)
    message: str = Field("", max_length=32_768)
    observed_generation: int = Field(0, ge=0)
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})


class MetricReading(Model):
    """One metric as a decision saw it."""

    type: str
    value: str | None = Field(None, description="Demand over all pods; absent when the metric is missing.")
    target: str
    proposal: int | None = Field(None, description="Replicas that this metric asks for.")


class Decision(Model):
    """Why the number of replicas is what it is: the inputs, each clamp in order, and the result."""

    time: str = Field(json_schema_extra={"format": "date-time"})
    before: int
    desired: int
    reason: str
    message: str
    pods_seen: int
    pods_missing: int
    readings: tuple[MetricReading, ...] = ()
    clamps: tuple[str, ...] = ()


class AutoscalingStatus(Model):
    """What the autoscaler wants and why."""

    desired_replicas: int | None = None
    last_scale_time: str | None = Field(None, json_schema_extra={"format": "date-time"})
    last_decision: Decision | None = None
    history: tuple[Decision, ...] = Field((), max_length=10, description="Latest changes, newest first.")


class Status(Model):
    """What is, as the operator last saw it."""

    observed_generation: int | None = None
    replicas: int = Field(0, ge=0, description="Pods that exist and are not draining.")
    ready_replicas: int = 0
    updated_replicas: int = 0
    draining_replicas: int = 0
    selector: str | None = None
    url: str | None = None
    ready: str | None = Field(None, description="Ready of wanted pods, for example 2/3.")
    targets: str | None = Field(None, description="Metrics against their targets, for example kv 40/75 %, queue 2/4.")
    autoscaling: AutoscalingStatus | None = None
    conditions: tuple[Condition, ...] = Field(
        (), json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    )

    def wire(self) -> dict[str, Any]:
        """As JSON for the API server; absent values are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
