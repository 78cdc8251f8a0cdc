"""What the user asked the autoscaler for, as one value with defaults filled in."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from pagefleet_api import duration, quantity
from pagefleet_api.behavior import RateUnit, ScalingRules, SelectPolicy
from pagefleet_api.engine import Engine
from pagefleet_api.runtimes import UNTOLD, Runtime
from pagefleet_api.scaling import NONE, Autoscaling, MetricTarget, MetricType, MissingMetrics, Mode
from pagefleet_api.schema import AUTO
from pagefleet_api.service import InferenceService
from pagefleet_operator.autoscaling.schedules import Schedule

TOLERANCE = 0.1
"""Share by which demand may differ from what the current pods should carry before anything moves.
HorizontalPodAutoscaler's default, `--horizontal-pod-autoscaler-tolerance`."""


class Rate(NamedTuple):
    """The number may move by so much within a period."""

    unit: RateUnit
    value: int
    period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the number may move in one direction."""

    window_s: float
    """The calmest answer of so long counts."""
    rates: tuple[Rate, ...]
    select: SelectPolicy = SelectPolicy.MAX
    tolerance: float = TOLERANCE

    def of(self, given: ScalingRules) -> "Rules":
        """What the user gave, the rest as here."""
        window_s, rates, tolerance = given.stabilization_window_seconds, given.policies, given.tolerance
        return Rules(
            window_s=self.window_s if window_s is None else window_s,
            rates=self.rates
            if rates is None
            else tuple(Rate(rate.type, rate.value, rate.period_seconds) for rate in rates),
            select=given.select_policy,
            tolerance=self.tolerance if tolerance is None else float(quantity.parse(tolerance)),
        )


UP = Rules(window_s=0, rates=(Rate(RateUnit.PODS, 4, 15), Rate(RateUnit.PERCENT, 100, 15)))
DOWN = Rules(window_s=300, rates=(Rate(RateUnit.PERCENT, 100, 15),))
"""HorizontalPodAutoscaler v2's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the user asked the autoscaler for, with defaults filled in."""

    mode: Mode = Mode.BUILTIN
    min_replicas: int
    max_replicas: int
    waiting_target: float | None = None
    """Waiting requests a pod; None when the metric is not used."""
    in_flight_target: float | None = None
    kv_target: float | None = None
    """Share of a pod's KV blocks, 0..1."""
    kv_demand_target: float | None = None
    """Share of a pod's KV blocks that requests and queued prompts would fill; may pass 1."""
    tells_kv: bool = True
    """The engine tells how full its KV cache is; one that does not is judged by its requests alone."""
    ttft_target_s: float | None = None
    """Time to first token that 95 of 100 requests should stay below."""
    max_num_seqs: int = 256
    max_queued_requests: int | None = 1024
    """None: the engine has no limit that is known here."""
    up: Rules = UP
    down: Rules = DOWN
    max_age_s: float = 30
    min_coverage: float = 0.5
    fallback_replicas: int | None = None
    lookahead_s: float | None = None
    """As the user fixed it; 0: never; None: as long as a pod takes to start."""
    spare_replicas: int = 0
    priority: int = 0
    schedules: tuple[Schedule, ...] = ()

    @classmethod
    def of(cls, service: InferenceService) -> Self | None:
        """The policy of a service; None when its replicas are fixed or others decide."""
        scaling = service.spec.autoscaling
        if scaling is None or scaling.max_replicas is None:
            return None
        engine = service.spec.engine
        targets = {kind: target for kind, target in _targets(scaling).items() if _told(kind, engine.runtime)}
        return cls(
            mode=scaling.mode,
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            waiting_target=targets.get(MetricType.WAITING_REQUESTS),
            in_flight_target=targets.get(MetricType.IN_FLIGHT_REQUESTS),
            kv_target=targets.get(MetricType.KV_CACHE_USAGE),
            kv_demand_target=targets.get(MetricType.KV_CACHE_DEMAND),
            tells_kv=_tells_kv(engine),
            max_num_seqs=engine.max_num_seqs,
            max_queued_requests=_most_queued(engine),
            ttft_target_s=targets.get(MetricType.TIME_TO_FIRST_TOKEN),
            up=UP.of(scaling.behavior.scale_up),
            down=DOWN.of(scaling.behavior.scale_down),
            max_age_s=scaling.missing_metrics.max_age_seconds,
            min_coverage=float(quantity.parse(scaling.missing_metrics.min_coverage)),
            fallback_replicas=scaling.missing_metrics.fallback_replicas,
            lookahead_s=_lookahead_s(scaling.lookahead),
            spare_replicas=scaling.spare_replicas,
            priority=scaling.priority,
            schedules=tuple(Schedule.of(schedule) for schedule in scaling.schedules),
        )

    @classmethod
    def believing(cls, service: InferenceService) -> Self:
        """What of a service's samples can be true, whoever decides on its number."""
        engine, missing = service.spec.engine, MissingMetrics()
        return cls(
            min_replicas=0,
            max_replicas=0,
            tells_kv=_tells_kv(engine),
            max_num_seqs=engine.max_num_seqs,
            max_queued_requests=_most_queued(engine),
            max_age_s=missing.max_age_seconds,
        )

    def carrying(self, desired: int) -> int:
        """Pods of so many that the load has asked for; spare ones beside them answer to nothing."""
        return max(desired - self.spare_replicas, 1) if self.spare_replicas else desired

    @property
    def acts(self) -> bool:
        """The answer becomes the number; else it is only said."""
        return self.mode is Mode.BUILTIN


def _targets(scaling: Autoscaling) -> dict[MetricType, float]:
    """Each metric's target a pod; that each has the one that its type takes is the resource's rule."""
    return {metric.type: _target(metric.target) for metric in scaling.metrics}


def _told(kind: MetricType, runtime: Runtime) -> bool:
    return runtime not in UNTOLD.get(kind.value, ())


def _tells_kv(engine: Engine) -> bool:
    told = _told(MetricType.KV_CACHE_USAGE, engine.runtime)
    return told and (engine.custom is None or engine.custom.tells_kv)


def _most_queued(engine: Engine) -> int | None:
    """A foreign engine has the limit that the user gave; without one its queue may have any length."""
    limited = engine.runtime is Runtime.PAGEFLEET or "max_queued_requests" in engine.model_fields_set
    return engine.max_queued_requests if limited else None


def _lookahead_s(given: str) -> float | None:
    if given == AUTO:
        return None
    return 0.0 if given == NONE else duration.parse(given)


def _target(target: MetricTarget) -> float:
    if target.p95 is not None:
        return duration.parse(target.p95)
    if target.average_utilization is not None:
        return target.average_utilization / 100
    return float(quantity.parse(str(target.average_value)))
