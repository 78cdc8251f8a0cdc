"""`spec.autoscaling` as types."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from pagefleet_api import duration
from pagefleet_api.behavior import Behavior
from pagefleet_api.schedules import Schedule
from pagefleet_api.schema import AUTO, Model, Ordered, Rule, Shaped, Text, Within, rules

RequestsPerPod = Annotated[Text, Within(least="1m", example="4")]
Coverage = Annotated[Text, Within(least="0", most="1")]


def _is_latency(text: str) -> str:
    if not 0.001 <= duration.parse(text) <= 3600:
        raise ValueError(f"target.p95 must be between 1ms and 1h, not {text}")
    return text


def _is_lookahead(text: str) -> str:
    if text not in {AUTO, NONE}:
        duration.parse(text)
    return text


NONE = "None"
Latency = Annotated[
    str,
    Field(min_length=1, max_length=16),
    Shaped(duration.PATTERN, "a duration such as 500ms or 1m30s"),
    AfterValidator(_is_latency),
]
Lookahead = Annotated[
    str,
    Field(min_length=1, max_length=16),
    Shaped(f"^({AUTO}|{NONE}|{duration.PATTERN[1:-1]})$", f"a duration such as 90s or 1m30s, {AUTO} or {NONE}"),
    AfterValidator(_is_lookahead),
]


class MetricType(StrEnum):
    """What the autoscaler can watch."""

    WAITING_REQUESTS = "WaitingRequests"
    KV_CACHE_USAGE = "KVCacheUsage"
    KV_CACHE_DEMAND = "KVCacheDemand"
    IN_FLIGHT_REQUESTS = "InFlightRequests"
    TIME_TO_FIRST_TOKEN = "TimeToFirstToken"


class Mode(StrEnum):
    """Who acts on the answer."""

    BUILTIN = "Builtin"
    RECOMMEND = "Recommend"
    EXTERNAL = "External"


_TARGET_FIELD = {
    MetricType.WAITING_REQUESTS: "average_value",
    MetricType.IN_FLIGHT_REQUESTS: "average_value",
    MetricType.KV_CACHE_USAGE: "average_utilization",
    MetricType.KV_CACHE_DEMAND: "average_utilization",
    MetricType.TIME_TO_FIRST_TOKEN: "p95",
}
_TARGET_UNIT = {
    MetricType.WAITING_REQUESTS: "requests a pod",
    MetricType.IN_FLIGHT_REQUESTS: "requests a pod",
    MetricType.KV_CACHE_USAGE: "percent",
    MetricType.KV_CACHE_DEMAND: "percent",
    MetricType.TIME_TO_FIRST_TOKEN: "a duration such as 500ms",
}


class MetricTarget(Model):
    """What each pod should carry."""

    average_value: RequestsPerPod | None = Field(None, description="Requests a pod, for example 4.")
    average_utilization: int | None = Field(None, ge=1, le=1000, description="Percent of the pod's KV cache.")
    p95: Latency | None = Field(None, description="Time that 95 of 100 requests stay below, for example 500ms.")


class MetricSpec(Model):
    """One metric with its target; the largest answer of all metrics wins."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!(self.type in ['KVCacheUsage', 'KVCacheDemand']) "
                "|| (has(self.target.averageUtilization) && !has(self.target.averageValue) && !has(self.target.p95))",
                "autoscaling.metrics: KVCacheUsage and KVCacheDemand take target.averageUtilization (percent) alone",
            ),
            (
                "!(self.type in ['WaitingRequests', 'InFlightRequests']) "
                "|| (has(self.target.averageValue) && !has(self.target.averageUtilization) && !has(self.target.p95))",
                "autoscaling.metrics: WaitingRequests and InFlightRequests take target.averageValue "
                "(requests a pod) alone",
            ),
            (
                "self.type != 'TimeToFirstToken' "
                "|| (has(self.target.p95) && !has(self.target.averageValue) && !has(self.target.averageUtilization))",
                "autoscaling.metrics: TimeToFirstToken takes target.p95 (a duration such as 500ms) alone",
            ),
            (
                "self.type != 'KVCacheUsage' || !has(self.target.averageUtilization) "
                "|| self.target.averageUtilization <= 100",
                "autoscaling.metrics: KVCacheUsage never passes 100 percent, so a target above it never asks for pods; "
                "use KVCacheDemand, which counts queued prompts too",
            ),
        )
    )
    type: MetricType
    target: MetricTarget

    @model_validator(mode="after")
    def _takes_its_own_target(self) -> Self:
        given = [name for name, value in self.target if value is not None]
        wanted = _TARGET_FIELD[self.type]
        if given != [wanted]:
            raise ValueError(f"{self.type} takes target.{to_camel(wanted)} ({_TARGET_UNIT[self.type]}) alone")
        if self.type is MetricType.KV_CACHE_USAGE and (self.target.average_utilization or 0) > 100:
            raise ValueError(
                "KVCacheUsage never passes 100 percent; use KVCacheDemand, which counts queued prompts too"
            )
        return self


class MissingMetrics(Model):
    """What to do while pods give no samples."""

    max_age_seconds: int = Field(30, ge=1, le=3600, description="Older samples count as missing. Default: 30.")
    min_coverage: Coverage = Field(
        "0.5", description="Share of pods with a sample, 0 to 1, below which nothing goes down. Default: 0.5."
    )
    fallback_replicas: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Not fewer than so many once no pod has given a sample for 5 minutes; at most maxReplicas counts.",
    )


_DEFAULT_METRICS = (
    MetricSpec(type=MetricType.WAITING_REQUESTS, target=MetricTarget(average_value="4")),
    MetricSpec(type=MetricType.KV_CACHE_USAGE, target=MetricTarget(average_utilization=75)),
)


_OURS = "!has(self.mode) || self.mode != 'External'"
_FOREIGN = (
    "autoscaling.mode External: whoever writes spec.replicas through /scale (a HorizontalPodAutoscaler, KEDA) decides; "
    "give bounds, metrics and behavior there and leave every other field of autoscaling out, or choose mode Builtin"
)


def _leaves_to_others(fields: tuple[str, ...]) -> tuple[str, str]:
    given = " || ".join(f"has(self.{name})" for name in fields)
    return f"{_OURS} || !({given})", _FOREIGN


_BOUNDS = Ordered("minReplicas", "maxReplicas")
_NO_ZERO = "autoscaling.minReplicas: 0 is not available in this version; use 1 or more"
_LESS = "lower its minReplicas and maxReplicas, or raise that"
_TWICE = "autoscaling.metrics: a type may be there once; leave the other out"
"""The API server says so of any list with keys."""


def _schedules_stay_within() -> Rule:
    sides = [f"(has(each.{name}) && each.{name} > self.maxReplicas)" for name in ("minReplicas", "maxReplicas")]
    return Rule(
        f"!has(self.schedules) || !has(self.maxReplicas) || !self.schedules.exists(each, {' || '.join(sides)})",
        f"one asks for more than autoscaling.maxReplicas; {_LESS}",
        field="schedules",
    )


class Autoscaling(Model):
    """Replicas that follow the load; absent means fixed replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            _leaves_to_others(
                (
                    "minReplicas",
                    "maxReplicas",
                    "metrics",
                    "behavior",
                    "lookahead",
                    "spareReplicas",
                    "priority",
                    "schedules",
                    "missingMetrics",
                )
            ),
            (
                "(has(self.mode) && self.mode == 'External') || has(self.maxReplicas)",
                "autoscaling.maxReplicas is required unless autoscaling.mode is External; give the most replicas",
            ),
            _BOUNDS.rule,
            (
                "!has(self.minReplicas) || self.minReplicas >= 1",
                _NO_ZERO,
            ),
            _schedules_stay_within(),
        )
    )
    mode: Mode = Field(
        Mode.BUILTIN,
        description="Builtin: the number follows the answer. Recommend: status says the answer, spec.replicas is the "
        "number. External: spec.replicas is the number, and others write it through /scale (a "
        "HorizontalPodAutoscaler, KEDA). Default: Builtin.",
    )
    min_replicas: int = Field(1, ge=0, le=10_000, description="Fewest replicas. Default: 1.")
    max_replicas: int | None = Field(
        None, ge=1, le=10_000, description="Most replicas. Required unless mode is External."
    )
    metrics: tuple[MetricSpec, ...] = Field(
        _DEFAULT_METRICS,
        min_length=1,
        max_length=5,
        description="What is watched; the largest answer wins. Default: WaitingRequests 4 and KVCacheUsage 75.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    behavior: Behavior = Field(default_factory=Behavior)
    lookahead: Lookahead = Field(
        AUTO,
        description="While the load grows steadily: ask for the pods of so much later. Auto: a pod's cold start, the "
        "median of the pool of nodes where one landed last; None: never; or a duration such as 90s. Default: Auto.",
    )
    spare_replicas: int = Field(
        0, ge=0, le=100, description="Pods beside those that the load asks for, warm for its next rise. Default: 0."
    )
    priority: int = Field(
        0,
        ge=-1000,
        le=1000,
        description="In a full cluster: while pods of a service of higher priority find no place, this one asks "
        "for none, for 15 minutes at most while none of those gets a place. Serving pods are never taken away for it. "
        "Default: 0.",
    )
    schedules: tuple[Schedule, ...] = Field(
        (),
        max_length=16,
        description="Bounds by the clock, within minReplicas and maxReplicas.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    missing_metrics: MissingMetrics = Field(default_factory=MissingMetrics)

    @property
    def external(self) -> bool:
        """Others decide: the number is followed as a fixed one is."""
        return self.mode is Mode.EXTERNAL

    @model_validator(mode="after")
    def _somebody_decides(self) -> Self:
        if self.external and self.model_fields_set - {"mode"}:
            raise ValueError(_FOREIGN)
        if not self.external and self.max_replicas is None:
            raise ValueError("maxReplicas is required unless mode is External; give the most replicas")
        return self

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        """What the API server refuses, for those who read files."""
        most = self.max_replicas
        if self.min_replicas < 1:
            raise ValueError(_NO_ZERO)
        if len({metric.type for metric in self.metrics}) < len(self.metrics):
            raise ValueError(_TWICE)
        for refusal in _BOUNDS.refusals(self.min_replicas, most):
            raise ValueError(refusal)
        for each in self.schedules:
            if most is not None and max(each.min_replicas or 0, each.max_replicas or 0) > most:
                raise ValueError(f"schedules: {each.name} asks for more than autoscaling.maxReplicas {most}; {_LESS}")
        return self
