"""The values that a scaling decision takes and gives."""

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Self

from pagefleet_api.load import Load
from pagefleet_api.reasons import Reason
from pagefleet_api.status import Decision
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.observed import Now, Observed, Pod
from pagefleet_operator.news import News


class PodLoad(NamedTuple):
    """One serving pod as the autoscaler sees it."""

    name: str
    ready: bool
    may_hold: bool
    """False: its container never ran, or it crashed a while ago, so it holds no request for sure."""
    load: Load | None = None
    """The latest good answer, however old; None when there never was one."""
    age_s: float | None = None
    placed: bool = True
    """False: the scheduler finds no node for it, and has looked for a while."""
    ttft: Histogram | None = None
    """Time to first token in seconds, since the engine began; None where nobody asked or it does not tell."""


PLACING = timedelta(seconds=10)
"""So long the scheduler may take to place a pod before the cluster counts as full."""
COMING_BACK = timedelta(minutes=5)
"""So long after a crash the requests that a pod held may come again, from clients that retry."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The pods that take new requests, and the number that was asked for."""

    current: int | None
    """Replicas now asked for (draining pods left out); None before the first Deployment."""
    pods: tuple[PodLoad, ...] = ()
    rollout_in_progress: bool = False
    unplaced_words: str = ""
    """Why pods find no place, in the scheduler's words."""
    resource: str | None = None
    """What its pods compete for with others beside CPU and memory, a kind of GPU; None where nothing."""
    rival: str | None = None
    """A service of higher priority whose pods find no place either."""
    cold_start_s: float | None = None
    """How long a pod takes from its creation until it is ready; None while no start was seen."""

    @property
    def unplaced(self) -> int:
        """Pods that find no place in the cluster."""
        return sum(not pod.placed for pod in self.pods)

    @property
    def ready(self) -> int:
        """Pods that get requests now."""
        return sum(pod.ready for pod in self.pods)

    @classmethod
    def of(
        cls,
        observed: Observed,
        now: Now,
        *,
        reported: int | None = None,
        rival: str | None = None,
        cold_start_s: float | None = None,
    ) -> Self:
        """The fleet that `observed` shows. Draining and leaving pods take no new requests: not part of it.

        `reported` is the number that the live status says is wanted, if any.
        """
        serving = [pod for pod in observed.pods if pod.active and pod.serving]
        needed = [each for pod in serving for each in observed.replica(pod)]
        words = [pod.problem.message for pod in needed if pod.problem is not None and not _placed(pod, now)]
        return cls(
            current=_asked_for(observed, reported),
            pods=tuple(_pod_load(pod, observed, now) for pod in serving),
            rollout_in_progress=observed.two_templates,
            unplaced_words=_with_room(words[0], observed) if words else "",
            resource=min((name for pod in serving for name in pod.extended), default=None),
            rival=rival,
            cold_start_s=cold_start_s,
        )


class Descent(NamedTuple):
    """The number went down because the load seemed to fit fewer pods."""

    pods: int
    """Before."""
    in_flight: float
    when_s: float
    """Monotonic seconds."""


class Doubt(NamedTuple):
    """The number went up again after it had gone down: was it more load, or were they too few for the same?"""

    pods: int
    """Too few if it was the same load."""
    in_flight: float
    """When the number had gone down."""
    ready_s: float | None
    """Monotonic seconds since when the pods that were added are ready; None while they are not."""
    policy: Policy
    """With another one they may be enough."""


class Overrun(NamedTuple):
    """Proof that so many pods did not hold a load."""

    pods: int
    in_flight: float
    when_s: float
    """Monotonic seconds."""
    policy: Policy
    """With another one they may hold it."""


class Point(NamedTuple):
    """The load at a moment."""

    when_s: float
    """Monotonic seconds."""
    in_flight: float


class Mark(NamedTuple):
    """What each pod had measured by a moment."""

    when_s: float
    """Monotonic seconds."""
    ttft: tuple[tuple[str, Histogram], ...]
    """By pod name; time to first token in seconds, since the engine began."""


class Change(NamedTuple):
    """The number moved."""

    when_s: float
    """Monotonic seconds."""
    by: int


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
    descent: Descent | None = None
    """The latest; those that follow one another closely are one."""
    rise_s: float | None = None
    """Monotonic seconds at which the number last went up."""
    doubt: Doubt | None = None
    overrun: Overrun | None = None
    held_back_s: float | None = None
    """Monotonic seconds at which a window last held an answer back; None since the number changed."""
    changes: tuple[Change, ...] = ()
    """Moves of the number that a rate policy may still look back on, oldest first."""
    blind_since_s: float | None = None
    """Monotonic seconds since when ready pods give no sample at all; None while any does."""
    trend: tuple[Point, ...] = ()
    """The load of the last minute, oldest first."""
    marks: tuple[Mark, ...] = ()
    """Latencies since the number or the ready pods last changed, at most for a minute, oldest first."""
    ready: int = 0
    """Pods that were ready then."""


class Verdict(NamedTuple):
    """Input of one condition; a status of None is Unknown."""

    status: bool | None
    reason: Reason
    message: str


class Clamp(NamedTuple):
    """One step that changed the answer or kept it: which, and in words with numbers."""

    reason: Reason
    words: str
    cause: str
    """The words without the numbers that move with every sample: what a condition says, as each change is a write."""

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
    measures: bool = False
    """It needs latencies of the pods, which are read only where somebody asks."""
    acts: bool = True
    """False: it is only said what would be done."""
    event: News | None = None

    @property
    def desired(self) -> int:
        """Replicas that should serve; where the decision does not act, that would."""
        return self.decision.desired


def _asked_for(observed: Observed, reported: int | None) -> int | None:
    """What the workload's number stands for without those of its pods that are on their way out.

    Between a drain's end and the smaller number the Deployment still counts the leaving pod, afterwards it does
    not, and its pods alone cannot tell which: the last report does.
    """
    if observed.deployment is None:
        return None
    active = [pod for pod in observed.pods if pod.active and observed.own(pod)]
    most = max(observed.deployment.replicas - sum(pod.draining for pod in active), 0)
    least = max(most - sum(pod.leaving for pod in active), 0)
    return most if reported is None else min(max(reported, least), most)


def _with_room(words: str, observed: Observed) -> str:
    """The scheduler's words, and how much of what the pods compete for is free, where that is known."""
    room = observed.room
    return words if room is None else f"{words} ({room.total_free} of {room.allocatable} {room.resource} free)"


def _placed(pod: Pod, now: Now) -> bool:
    problem = pod.problem
    if problem is None or problem.reason is not Reason.UNSCHEDULABLE:
        return True
    since = problem.since or pod.created
    return since is None or now.wall - since < PLACING


def _may_hold(pod: Pod, now: Now) -> bool:
    since = pod.crashed_since
    return pod.started and (since is None or now.wall - since <= COMING_BACK)


def _pod_load(pod: Pod, observed: Observed, now: Now) -> PodLoad:
    sample, measured = observed.sample(pod), observed.measured(pod)
    return PodLoad(
        name=pod.name,
        ready=pod.ready,
        may_hold=_may_hold(pod, now),
        load=None if sample is None else sample.load,
        age_s=None if sample is None else sample.age_s(now),
        placed=all(_placed(each, now) for each in observed.replica(pod)),
        ttft=None if measured is None else measured.ttft,
    )
