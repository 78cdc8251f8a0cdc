"""The values that a scaling decision takes and gives."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from pagefleet_api.load import Load
from pagefleet_api.reasons import Reason
from pagefleet_api.status import Decision
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.news import News
from pagefleet_operator.observed import Now, Observed, Pod


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
    overrun: Overrun | None = None
    held_back_s: float | None = None
    """Monotonic seconds at which a window last held an answer back; None since the number changed."""
    changes: tuple[Change, ...] = ()
    """Moves of the number that a rate policy may still look back on, oldest first."""
    blind_since_s: float | None = None
    """Monotonic seconds since when ready pods give no sample at all; None while any does."""


class Verdict(NamedTuple):
    """Input of one condition; a status of None is Unknown."""

    status: bool | None
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
    acts: bool = True
    """False: it is only said what would be done."""
    event: News | None = None

    @property
    def desired(self) -> int:
        """Replicas that should serve; where the decision does not act, that would."""
        return self.decision.desired


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
