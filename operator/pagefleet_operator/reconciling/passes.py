"""A pass over a service in values: what is kept before it, what it decided, what became of it."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pydantic import ValidationError

from pagefleet_api.explanation import Explanation
from pagefleet_api.service import InferenceService
from pagefleet_api.status import Decision, Status
from pagefleet_operator import render, status
from pagefleet_operator.apiserver import cluster as api
from pagefleet_operator.autoscaling import Claim, Fleet, Memory, Outcome, Policy, next_steps
from pagefleet_operator.capacity import Judgement, judge
from pagefleet_operator.facts.observed import Body, Now, Observed
from pagefleet_operator.facts.starts import StartLog
from pagefleet_operator.metrics import Metrics, Operator
from pagefleet_operator.news import News
from pagefleet_operator.plan.headway import Headway
from pagefleet_operator.plan.trial import Baseline, Course
from pagefleet_operator.reconciling import workloads
from pagefleet_operator.reconciling.basis import Basis
from pagefleet_operator.reconciling.execute import Hindrances, Steps

TRAIL_LENGTH = 100


class Scene(NamedTuple):
    """What one decision was made of, and the memory that it left behind."""

    policy: Policy
    fleet: Fleet
    memory: Memory
    now: Now


@dataclass(slots=True)
class Recollection:
    """What is kept of one service between passes. It may be lost at any time."""

    service: InferenceService
    """As it could be read last."""
    memory: Memory | None = None
    claim: Claim = field(default_factory=Claim)
    """On the room of the cluster."""
    starts: StartLog = field(default_factory=StartLog)
    scene: Scene | None = None
    """What the latest decision was made of; None for fixed replicas."""
    wanted: int | None = None
    headway: Headway | None = None
    """Of a roll-out of groups."""
    lacking: datetime | None = None
    """Since when a pod of a group has been missing."""
    unposted: list[News] = field(default_factory=list)
    start: Baseline = field(default_factory=dict)
    """What each pod had measured when the comparison of a trial began."""
    trail: deque[Decision] = field(default_factory=lambda: deque(maxlen=TRAIL_LENGTH))

    def explanation(self) -> Explanation:
        """What was decided lately, and what would change it next."""
        return Explanation(
            namespace=self.service.namespace,
            name=self.service.name,
            decisions=tuple(self.trail),
            next_steps=None if self.scene is None else next_steps(*self.scene),
        )


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass decided, before anything is done about it."""

    steps: Steps
    wanted: int
    outcome: Outcome | None
    course: Course
    judgement: Judgement
    basis: Basis
    starts: StartLog = field(default_factory=StartLog)
    overdue: str | None = None
    """What to say of a roll-out of groups that makes no progress."""

    @property
    def followed(self) -> bool:
        """Somebody decides by the load: ours, or an autoscaler of others."""
        return self.steps.service.spec.autoscaling is not None

    @property
    def latencies(self) -> bool:
        """Engines should be asked for what they measure."""
        return self.starts.asks or (self.outcome is not None and self.outcome.measures)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a pass."""

    decided: Pass
    hindrances: Hindrances
    refusal: api.Refused | None = None

    def check(self) -> None:
        """Raises ApiError when the pass should be tried again."""
        if self.refusal is not None:
            raise self.refusal
        if self.hindrances.conflicts:
            raise api.Refused(self.hindrances.conflicts[0].message)


def live_status(body: Body | None) -> Status:
    """The status that an object has; an unreadable one (of another version) counts as none."""
    try:
        return Status.model_validate((body or {}).get("status") or {})
    except ValidationError:
        return Status()


def judged(service: InferenceService, observed: Observed, body: Body | None) -> Judgement:
    """Whether the model fits, and whether pods may be made; `body` is the service's object."""
    live = workloads.live(service, observed.children)
    return judge(service, observed, live_status(body).capacity, made=render.made_of(service, live))


def status_of(done: Done, observed: Observed, before: Status, now: Now, unserved: str | None = None) -> Status:
    """What to say of the service after this pass; `observed` has its writes in it, `before` is the live status.

    unserved: why others' autoscalers cannot read the load here.
    """
    decided = done.decided
    scene = status.Scene(
        decided.steps.service,
        observed,
        decided.wanted,
        now,
        decided.outcome,
        conflicts=done.hindrances.conflicts,
        waits=done.hindrances.waits,
        apply_error=None if done.refusal is None else str(done.refusal),
        warnings=render.warnings(decided.steps.service),
        judgement=decided.judgement,
        lacks=decided.basis.lacks,
        cached=decided.basis.cached,
        trial_requests=decided.course.requests,
        unserved=unserved,
        overdue=decided.overdue,
    )
    return status.service_status(scene, before, decided.starts)


def time_decision(metrics: Metrics, decided: Pass) -> None:
    """How long after its newest sample a change of the number was written."""
    samples = decided.steps.observed.samples.values()
    if decided.outcome is not None and decided.outcome.event is not None and samples:
        taken_s = max(sample.taken_monotonic_s for sample in samples)
        metrics.observe(Operator.DECISION, time.monotonic() - taken_s)


def measure(metrics: Metrics, place: Sequence[str], decided: Pass, observed: Observed) -> None:
    """Set the gauges of a service, and add the starts that this pass learnt."""
    active = [pod for pod in observed.pods if pod.active]
    age_s = None if decided.outcome is None else decided.outcome.oldest_sample_age_s
    metrics.set(Operator.DESIRED_REPLICAS, decided.wanted, *place)
    metrics.set(Operator.READY_REPLICAS, sum(pod.ready and pod.serving for pod in active), *place)
    metrics.set(Operator.DRAINING_REPLICAS, sum(pod.draining for pod in active), *place)
    metrics.set(Operator.METRICS_AGE, age_s, *place)
    for phases in decided.starts.fresh:
        for phase, seconds in phases.named.items():
            metrics.observe(Operator.COLD_START, seconds, *place, phase)


def same_answer(one: Decision, other: Decision) -> bool:
    """Whether the later of two decisions stands for both."""
    first, second = ((each.before, each.desired, each.reason, each.clamps) for each in (one, other))
    return first == second
