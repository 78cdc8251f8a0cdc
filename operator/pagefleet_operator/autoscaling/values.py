"""The values that a scaling decision takes and gives."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from pagefleet_api import quantity
from pagefleet_api.load import Load
from pagefleet_api.reasons import Reason
from pagefleet_api.scaling import Autoscaling, MetricTarget, MetricType
from pagefleet_api.service import InferenceService
from pagefleet_api.status import Decision
from pagefleet_operator.news import News
from pagefleet_operator.observed import Now, Observed, Pod

DEFAULT_DOWN_WINDOW_S = 300
DEFAULT_UP_WINDOW_S = 0
"""HorizontalPodAutoscaler v2's stabilisation defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the user asked the autoscaler for, with defaults filled in."""

    min_replicas: int
    max_replicas: int
    waiting_target: float | None = None
    """Waiting requests a pod; None when the metric is not used."""
    in_flight_target: float | None = None
    kv_target: float | None = None
    """Share of a pod's KV blocks, 0..1."""
    max_num_seqs: int = 256
    max_queued_requests: int = 1024
    up_window_s: float = DEFAULT_UP_WINDOW_S
    down_window_s: float = DEFAULT_DOWN_WINDOW_S
    max_age_s: float = 30
    min_coverage: float = 0.5

    @classmethod
    def of(cls, service: InferenceService) -> Self | None:
        """The policy of a service; None when its replicas are fixed."""
        scaling = service.spec.autoscaling
        if scaling is None:
            return None
        targets = _targets(scaling)
        up, down = scaling.behavior.scale_up, scaling.behavior.scale_down
        return cls(
            min_replicas=scaling.min_replicas,
            max_replicas=scaling.max_replicas,
            waiting_target=targets.get(MetricType.WAITING_REQUESTS),
            in_flight_target=targets.get(MetricType.IN_FLIGHT_REQUESTS),
            kv_target=targets.get(MetricType.KV_CACHE_USAGE),
            max_num_seqs=service.spec.engine.max_num_seqs,
            max_queued_requests=service.spec.engine.max_queued_requests,
            up_window_s=_or(up.stabilization_window_seconds, DEFAULT_UP_WINDOW_S),
            down_window_s=_or(down.stabilization_window_seconds, DEFAULT_DOWN_WINDOW_S),
            max_age_s=scaling.missing_metrics.max_age_seconds,
            min_coverage=float(quantity.parse(scaling.missing_metrics.min_coverage)),
        )


class PodLoad(NamedTuple):
    """One serving pod as the autoscaler sees it."""

    name: str
    ready: bool
    started: bool
    """False: its container never ran, so it holds no request for sure."""
    load: Load | None = None
    """The latest good answer, however old; None when there never was one."""
    age_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pods that take new requests, and the number that was asked for."""

    current: int | None
    """Replicas now asked for (draining pods left out); None before the first Deployment."""
    pods: tuple[PodLoad, ...] = ()
    rollout_in_progress: bool = False

    @property
    def ready(self) -> int:
        """Pods that get requests now."""
        return sum(pod.ready for pod in self.pods)

    @classmethod
    def of(cls, observed: Observed, now: Now, *, reported: int | None = None) -> Self:
        """The fleet that `observed` shows. Draining and leaving pods take no new requests: not part of it.

        `reported` is the number that the live status says is wanted, if any.
        """
        serving = [pod for pod in observed.pods if pod.active and pod.serving]
        return cls(
            current=_asked_for(observed, reported),
            pods=tuple(_pod_load(pod, observed, now) for pod in serving),
            rollout_in_progress=observed.two_templates,
        )


class Overrun(NamedTuple):
    """Proof that so many pods did not hold a load: they queued, and the queue raised the number."""

    pods: int
    in_flight: float
    when_s: float
    """Monotonic seconds."""
    policy: Policy
    """With another one they may hold it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one service's autoscaler remembers. It may be lost at any time: the windows then start anew
    from the current replicas, so that nothing goes down for one window.
    """

    desired: int
    answers: tuple[tuple[float, int], ...] = ()
    """(monotonic seconds at which it was last given, answer before stabilisation), oldest first;
    repeats are one entry."""
    began_s: float | None = None
    """Monotonic seconds of the first decision: before that no pod was asked."""
    overrun: Overrun | None = None
    held_back_s: float | None = None
    """Monotonic seconds at which a window last held an answer back; None since the number changed."""


class Verdict(NamedTuple):
    """Input of one condition."""

    status: bool
    reason: Reason
    message: str


class Clamp(NamedTuple):
    """One step that changed the answer or kept it: which, and in words with numbers."""

    reason: Reason
    words: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.words}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision with all that explains it."""

    decision: Decision
    memory: Memory
    active: Verdict
    able: Verdict
    limited: Verdict
    targets: str
    """Metrics against their targets, a pod: "kv 40/75 %, queue 2/4"."""
    oldest_sample_age_s: float | None
    watch_closely: bool
    """The load is near a threshold or pods are on their way: sample often."""
    event: News | None = None

    @property
    def desired(self) -> int:
        """Replicas that should serve."""
        return self.decision.desired


def _targets(scaling: Autoscaling) -> dict[MetricType, float]:
    """Each metric's target a pod; that each has the one that its type takes is the resource's rule."""
    return {metric.type: _target(metric.target) for metric in scaling.metrics}


def _target(target: MetricTarget) -> float:
    if target.average_utilization is not None:
        return target.average_utilization / 100
    return float(quantity.parse(str(target.average_value)))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _asked_for(observed: Observed, reported: int | None) -> int | None:
    """What the Deployment's number stands for without the pods on their way out.

    Between a drain's end and the smaller number the Deployment still counts the leaving pod, afterwards it does
    not, and its pods alone cannot tell which: the last report does.
    """
    if observed.deployment is None:
        return None
    active = [pod for pod in observed.pods if pod.active]
    most = max(observed.deployment.replicas - sum(pod.draining for pod in active), 0)
    least = max(most - sum(pod.leaving for pod in active), 0)
    return most if reported is None else min(max(reported, least), most)


def _pod_load(pod: Pod, observed: Observed, now: Now) -> PodLoad:
    sample = observed.sample(pod)
    if sample is None:
        return PodLoad(pod.name, pod.ready, pod.started)
    return PodLoad(pod.name, pod.ready, pod.started, sample.load, sample.age_s(now))
