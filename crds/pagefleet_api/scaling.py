"""`spec.autoscaling` as types."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from pagefleet_api.schema import Model, Text, Within, rules

RequestsPerPod = Annotated[Text, Within("autoscaling.metrics target.averageValue", least="1m")]
Coverage = Annotated[Text, Within("autoscaling.missingMetrics.minCoverage", least="0", most="1")]


class MetricType(StrEnum):
    """What the autoscaler can watch."""

    WAITING_REQUESTS = "WaitingRequests"
    KV_CACHE_USAGE = "KVCacheUsage"
    IN_FLIGHT_REQUESTS = "InFlightRequests"


class MetricTarget(Model):
    """What each pod should carry."""

    average_value: RequestsPerPod | None = Field(None, description="Requests a pod, for example 4.")
    average_utilization: int | None = Field(None, ge=1, le=100, description="Percent of the pod's KV cache.")


class MetricSpec(Model):
    """One metric with its target; the largest answer of all metrics wins."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.type != 'KVCacheUsage' "
                "|| (has(self.target.averageUtilization) && !has(self.target.averageValue))",
                "autoscaling.metrics: KVCacheUsage takes target.averageUtilization (percent) alone",
            ),
            (
                "self.type == 'KVCacheUsage' "
                "|| (has(self.target.averageValue) && !has(self.target.averageUtilization))",
                "autoscaling.metrics: WaitingRequests and InFlightRequests take target.averageValue "
                "(requests a pod) alone",
            ),
        )
    )
    type: MetricType
    target: MetricTarget

    @model_validator(mode="after")
    def _takes_its_own_target(self) -> Self:
        wants_percent = self.type is MetricType.KV_CACHE_USAGE
        given = (self.target.average_value is not None, self.target.average_utilization is not None)
        if given != (not wants_percent, wants_percent):
            field = "averageUtilization (percent)" if wants_percent else "averageValue (requests a pod)"
            raise ValueError(f"{self.type} takes target.{field} alone")
        return self


class ScalingRules(Model):
    """One direction of `behavior`, as in HorizontalPodAutoscaler v2."""

    stabilization_window_seconds: int | None = Field(
        None, ge=0, le=3600, description="Look back so long and take the calmest answer. Default: 0 up, 300 down."
    )


class Behavior(Model):
    """How fast the answer may move, as in HorizontalPodAutoscaler v2."""

    scale_up: ScalingRules = Field(default_factory=ScalingRules)
    scale_down: ScalingRules = Field(default_factory=ScalingRules)


class MissingMetrics(Model):
    """What to do while pods give no samples."""

    max_age_seconds: int = Field(30, ge=1, le=3600, description="Older samples count as missing. Default: 30.")
    min_coverage: Coverage = Field(
        "0.5", description="Share of pods with a sample, 0 to 1, below which nothing goes down. Default: 0.5."
    )


_DEFAULT_METRICS = (
    MetricSpec(type=MetricType.WAITING_REQUESTS, target=MetricTarget(average_value="4")),
    MetricSpec(type=MetricType.KV_CACHE_USAGE, target=MetricTarget(average_utilization=75)),
)


class Autoscaling(Model):
    """Replicas that follow the load; absent means fixed replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
                "autoscaling.minReplicas must not be above autoscaling.maxReplicas",
            ),
            (
                "!has(self.minReplicas) || self.minReplicas >= 1",
                "autoscaling.minReplicas: 0 is not available in this version; use 1 or more",
            ),
        )
    )
    min_replicas: int = Field(1, ge=0, le=10_000, description="Fewest replicas. Default: 1.")
    max_replicas: int = Field(ge=1, le=10_000, description="Most replicas.")
    metrics: tuple[MetricSpec, ...] = Field(
        _DEFAULT_METRICS,
        min_length=1,
        max_length=3,
        description="What is watched; the largest answer wins. Default: WaitingRequests 4 and KVCacheUsage 75.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    behavior: Behavior = Field(default_factory=Behavior)
    missing_metrics: MissingMetrics = Field(default_factory=MissingMetrics)
