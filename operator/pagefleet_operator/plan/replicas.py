"""How a service gets from the pods that it has to the number that it wants, without cutting an answer off."""

from dataclasses import dataclass

from pagefleet_api.reasons import EventReason
from pagefleet_operator.observed import LEAVING_COST, Now, Observed, Pod

SETTLE_S = 2.0
DRAINING_COST = -1000


@dataclass(frozen=True, slots=True)
class Drain:
    """Take a pod out: one patch of label and annotations, then POST /drain."""

    pod: Pod
    started: str
    deletion_cost: int = DRAINING_COST


@dataclass(frozen=True, slots=True)
class Undrain:
    """Take a pod back: one patch (label serving "true", both annotations removed), then POST /undrain."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Release:
    """A drain is over: one patch (deletion cost) lets the ReplicaSet take this pod first."""

    pod: Pod
    took_s: float
    aborted: int | None
    """Answers still running when the time was up; 0 when it ran dry, None when nobody knows."""
    deletion_cost: int = LEAVING_COST


@dataclass(frozen=True, slots=True)
class Tell:
    """POST /drain or /undrain again: the engine's state differs from the pod's label."""

    pod: Pod
    drain: bool


@dataclass(frozen=True, slots=True)
class Note:
    """An Event on the InferenceService."""

    reason: EventReason
    message: str


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Carry out in this order: undrain, drain, release, then the Deployment's replicas, then tell."""

    undrain: tuple[Undrain, ...]
    drain: tuple[Drain, ...]
    release: tuple[Release, ...]
    deployment_replicas: int
    tell: tuple[Tell, ...]
    events: tuple[Note, ...]
    draining: int
    """Pods that still drain after this plan: while above 0, look again every 2 s."""


def plan_replicas(
    wanted: int, observed: Observed, now: Now, *, drain_timeout_s: float, sample_max_age_s: float = 30.0
) -> ReplicaPlan:
    """The steps towards `wanted` serving pods."""
    raise NotImplementedError
