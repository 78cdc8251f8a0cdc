"""`spec.autoscaling.behavior` as types: HorizontalPodAutoscaler v2's, field by field, with its defaults.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/horizontal-pod-autoscaler-v2/
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from pagefleet_api.schema import Model, Text, Within

Tolerance = Annotated[Text, Within(least="0", most="10")]


class SelectPolicy(StrEnum):
    """Which of several rate policies holds."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class RateUnit(StrEnum):
    """What a rate policy counts."""

    PODS = "Pods"
    PERCENT = "Percent"


class RatePolicy(Model):
    """How far the number may move within a period."""

    type: RateUnit = Field(description="Pods, or Percent of the number at the period's start.")
    value: int = Field(ge=1, le=100_000, description="Pods or percent by which the number may move in a period.")
    period_seconds: int = Field(ge=1, le=1800, description="The period that is looked back on.")


class ScalingRules(Model):
    """One direction of `behavior`."""

    stabilization_window_seconds: int | None = Field(
        None, ge=0, le=3600, description="Look back so long and take the calmest answer. Default: 0 up, 300 down."
    )
    select_policy: SelectPolicy = Field(
        SelectPolicy.MAX,
        description="Of several policies the one that allows most (Max) or least (Min); Disabled: the number never "
        "moves this way. Default: Max.",
    )
    policies: tuple[RatePolicy, ...] | None = Field(
        None,
        min_length=1,
        max_length=10,
        description="How fast the number may move. Default: 4 pods or 100 percent in 15 s, down 100 percent in 15 s.",
    )
    tolerance: Tolerance | None = Field(
        None,
        description="Share by which the load may differ from its target before the number moves this way. "
        "Default: 0.1.",
    )


class Behavior(Model):
    """How fast the answer may move, as in HorizontalPodAutoscaler v2."""

    scale_up: ScalingRules = Field(default_factory=ScalingRules)
    scale_down: ScalingRules = Field(default_factory=ScalingRules)
