"""`spec.autoscaling` as types."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pagefleet_api import duration, wording
from pagefleet_api.agreement import Agreeing, Ordered
from pagefleet_api.behavior import Behavior
from pagefleet_api.schedules import Schedule
from pagefleet_api.schema import AUTO, Model, Rule, Shaped, Text, Within, joint, rules

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


_TARGETS = {
    "average_value": ("requests a pod", (MetricType.WAITING_REQUESTS, MetricType.IN_FLIGHT_REQUESTS)),
    "average_utilization": ("percent", (MetricType.KV_CACHE_USAGE, MetricType.KV_CACHE_DEMAND)),
    "p95": ("a duration such as 500ms", (MetricType.TIME_TO_FIRST_TOKEN,)),
}
"""The one target that each metric takes, and what it counts."""


class MetricTarget(Model):
    """What each pod should carry."""

    average_value: RequestsPerPod | None = Field(None, description="Requests a pod, for example 4.")
    average_utilization: int | None = Field(None, ge=1, le=1000, description="Percent of the pod's KV cache.")
    p95: Latency | None = Field(None, description="Time that 95 of 100 requests stay below, for example 500ms.")


_NO_TARGET = "autoscaling.metrics: {{}} takes target.{} ({}) alone; give that, and leave every other one of target out"
_NEVER_ABOVE = (
    "autoscaling.metrics: KVCacheUsage never passes 100 percent, so target.averageUtilization {} never asks for pods; "
    "use KVCacheDemand, which counts queued prompts too"
)


def _alone(target: str) -> Rule:
    unit, kinds = _TARGETS[target]
    given = [f"{'' if name == target else '!'}has(self.target.{to_camel(name)})" for name in _TARGETS]
    return joint(
        f"!(self.type in {[kind.value for kind in kinds]}) || ({' && '.join(given)})",
        _NO_TARGET.format(to_camel(target), unit),
        "self.type",
        field="target",
        plain=_NO_TARGET.format(to_camel(target), unit).format(" or ".join(kinds)),
    )


class MetricSpec(Agreeing):
    """One metric with its target; the largest answer of all metrics wins."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            *map(_alone, _TARGETS),
            joint(
                "self.type != 'KVCacheUsage' || !has(self.target.averageUtilization) "
                "|| self.target.averageUtilization <= 100",
                _NEVER_ABOVE,
                "self.target.averageUtilization",
                field="target.averageUtilization",
                plain=_NEVER_ABOVE.format("above it"),
            ),
        )
    )
    type: MetricType
    target: MetricTarget

    def _refusals(self) -> Iterator[str]:
        given = [name for name, value in self.target if value is not None]
        for target, (unit, kinds) in _TARGETS.items():
            if self.type in kinds and given != [target]:
                yield _NO_TARGET.format(to_camel(target), unit).format(self.type)
        utilization = self.target.average_utilization or 0
        if self.type is MetricType.KV_CACHE_USAGE and utilization > 100:
            yield _NEVER_ABOVE.format(utilization)


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


_FOREIGN = (
    "autoscaling.mode External: whoever writes spec.replicas through /scale (a HorizontalPodAutoscaler, KEDA) decides; "
    "give bounds, metrics and behavior there and leave every other field of autoscaling out, or choose mode Builtin"
)
_NO_MOST = "autoscaling.maxReplicas is required unless autoscaling.mode is External; give the most replicas"
_BOUNDS = Ordered("minReplicas", "maxReplicas")
_NO_ZERO = "autoscaling.minReplicas 0 is not available in this version; use 1 or more"
_LESS = "lower its minReplicas and maxReplicas, or raise that"
_ABOVE = f"autoscaling.schedules: {{}} asks for {{}} replicas, more than autoscaling.maxReplicas {{}}; {_LESS}"
_TWICE = "autoscaling.metrics: {} may be there once; leave the other out"
"""The API server says so of any list with keys."""


def _leaves_to_others(*fields: str) -> Rule:
    given = " || ".join(f"has(self.{name})" for name in fields)
    return joint(f"!has(self.mode) || self.mode != 'External' || !({given})", _FOREIGN, field="mode")


def _schedules_stay_within() -> Rule:
    least, most = (f"has(each.{name}) && each.{name} > self.maxReplicas" for name in ("minReplicas", "maxReplicas"))
    above = f"each, ({least}) || ({most})"
    found = f"self.schedules.filter({above})"
    return joint(
        f"!has(self.schedules) || !has(self.maxReplicas) || !self.schedules.exists({above})",
        _ABOVE,
        f"{found}[0].name",
        f"{found}.map(each, {least} ? each.minReplicas : each.maxReplicas)[0]",
        "self.maxReplicas",
        field="schedules",
        plain=f"autoscaling.schedules: one asks for more replicas than autoscaling.maxReplicas; {_LESS}",
    )


class Autoscaling(Agreeing):
    """Replicas that follow the load; absent means fixed replicas."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            _leaves_to_others(
                *("minReplicas", "maxReplicas", "metrics", "behavior", "lookahead", "spareReplicas", "priority"),
                *("schedules", "missingMetrics"),
            ),
            joint(
                "(has(self.mode) && self.mode == 'External') || has(self.maxReplicas)", _NO_MOST, field="maxReplicas"
            ),
            _BOUNDS.rule,
            joint("!has(self.minReplicas) || self.minReplicas >= 1", _NO_ZERO, field="minReplicas"),
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

    def _refusals(self) -> Iterator[str]:
        most = self.max_replicas
        if self.external and self.model_fields_set - {"mode"}:
            yield _FOREIGN
        if not self.external and most is None:
            yield _NO_MOST
        if self.min_replicas < 1:
            yield _NO_ZERO
        twice = wording.twice([metric.type for metric in self.metrics])
        if twice is not None:
            yield _TWICE.format(twice)
        yield from _BOUNDS.refusals(self.min_replicas, most)
        for each in self.schedules:
            above = [asked for asked in (each.min_replicas, each.max_replicas) if most and asked and asked > most]
            if above:
                yield _ABOVE.format(each.name, above[0], most)
