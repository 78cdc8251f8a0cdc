"""How a service gets from the pods that it has to the number that it wants, without cutting an answer off.

Nothing is remembered: a pod's label and annotations say how far its drain is, so that an operator that
starts in the middle of one goes on with it. A pod serves (label "true"), drains (label "false"), or leaves
(label "false" and the lowest deletion cost: nothing to wait for). The Deployment's number is always the
wanted pods plus those that still drain.

A ReplicaSet that shrinks takes unscheduled and pending pods first, then those not ready, then the lowest
deletion cost (`ActivePodsWithRanks` in kubernetes/pkg/controller/controller_utils.go). A draining pod of
ours is not ready, so it goes before one that serves; where a pending pod is taken in its place, too few
serve afterwards and the drained one is taken back. Groups of a LeaderWorkerSet go by their places (`groups`).
"""

from dataclasses import dataclass

from pagefleet_api.load import EngineState
from pagefleet_api.reasons import EventReason, Reason
from pagefleet_operator.facts.observed import LEAVING_COST, Now, Observed, Pod, Sample, format_time
from pagefleet_operator.news import News
from pagefleet_operator.plan import groups

DRAINING_COST = -1000
"""Deletion cost of a pod that still drains: above a leaving pod's, below any serving pod's."""

SETTLE_S = 2.0
"""A sample counts as the end of a drain only when it was taken so long after the label flip: endpoints
and kept connections lag behind the label."""

_DEAD = (Reason.CRASH_LOOP, Reason.OUT_OF_MEMORY, Reason.IMAGE_PULL_FAILED, Reason.UNSCHEDULABLE)
"""Problems of pods in which nothing runs that could be waited for."""

_ANSWERS = (EngineState.READY, EngineState.DRAINING)


@dataclass(frozen=True, slots=True)
class Drain:
    """Take a pod out: one patch of label, drain start and deletion cost, then POST /drain.

    With LEAVING_COST there is nothing to wait for: the engine need not be told.
    """

    pod: Pod
    started: str
    deletion_cost: int = DRAINING_COST


@dataclass(frozen=True, slots=True)
class Undrain:
    """Take a pod back: one patch (label serving "true", both annotations removed), then POST /undrain."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Release:
    """A drain is over: one patch of the deletion cost lets the ReplicaSet take this pod first."""

    pod: Pod
    took_s: float
    aborted: int | None = 0
    """Answers still running when the time was up; 0 when it ran dry, None when the engine never said."""
    timed_out: bool = False
    seen_s: float | None = None
    """Age of the sample that `aborted` is from, when it is too old to be the last word."""
    deletion_cost: int = LEAVING_COST


@dataclass(frozen=True, slots=True)
class Tell:
    """POST /drain (or /undrain) again: the engine's state is not what the pod's label says."""

    pod: Pod
    drain: bool


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Carry out in this order: undrain, drain, release, then the Deployment's number, then tell.

    When a patch fails, stop: the number must not go down before the pods that may go are marked.
    """

    deployment_replicas: int
    undrain: tuple[Undrain, ...] = ()
    drain: tuple[Drain, ...] = ()
    release: tuple[Release, ...] = ()
    tell: tuple[Tell, ...] = ()
    events: tuple[News, ...] = ()
    draining: int = 0
    """Pods that still drain after this plan: while above 0, sample often and look again every 2 s."""


@dataclass(frozen=True, slots=True)
class _View:
    """What is observed, with the judgements that choices are made by."""

    observed: Observed
    now: Now
    sample_max_age_s: float

    def fresh(self, pod: Pod) -> Sample | None:
        sample = self.observed.sample(pod)
        return sample if sample is not None and sample.age_s(self.now) <= self.sample_max_age_s else None

    def able(self, pod: Pod) -> bool:
        """It serves, or would as soon as it is told: a draining engine is sound though not ready."""
        if self.observed.cut_off(pod):
            return False
        sample = None if _dead(pod) else self.fresh(pod)
        return pod.ready or (sample is not None and sample.load.state in _ANSWERS)

    def in_flight(self, pod: Pod) -> float:
        """Requests that the pod holds; one that runs and gives no sample may hold any number."""
        sample = self.fresh(pod)
        if _dead(pod):
            return 0
        held = None if sample is None else sample.load.in_flight
        return float("inf") if held is None else held

    def idlest_first(self, pod: Pod) -> tuple[bool, float, float, str]:
        """Not able first, then fewest in flight, then newest."""
        created_s = pod.created.timestamp() if pod.created else 0.0
        return self.able(pod), self.in_flight(pod), -created_s, pod.name

    def replicas(self, wanted: int) -> int:
        """The workload's number now; `wanted` while there is none."""
        return wanted if self.observed.deployment is None else self.observed.deployment.replicas

    def drained_s(self, pod: Pod) -> float | None:
        """Seconds since the drain began; None when the pod carries no start."""
        return None if pod.drain_started is None else (self.now.wall - pod.drain_started).total_seconds()


def plan_replicas(
    wanted: int, observed: Observed, now: Now, *, drain_timeout_s: float, sample_max_age_s: float = 30.0
) -> ReplicaPlan:
    """The steps from `observed` towards `wanted` serving pods (>= 0).

    Undraining comes before new pods. Surplus pods drain all at once, those that are not able first; none
    starts to drain in a roll-out, where the Deployment replaces pods and SIGTERM drains them. The leader of a group
    that lost a pod leaves the Service at any time, and comes back with it.
    """
    view = _View(observed, now, sample_max_age_s)
    active = [pod for pod in observed.pods if pod.active and observed.own(pod)]
    serving = [pod for pod in active if pod.serving]
    out = [pod for pod in active if not pod.serving]
    back = _to_undrain(wanted, serving, out, view)
    serving += back
    staying = [pod for pod in out if pod not in back]
    drains = _to_drain(wanted, serving, view)
    releases = tuple(over for pod in staying if (over := _finished(pod, view, drain_timeout_s)) is not None)
    released = {release.pod.uid for release in releases}
    draining = [pod for pod in staying if pod.draining and pod.uid not in released]
    draining += [drain.pod for drain in drains if drain.deletion_cost > LEAVING_COST]
    return ReplicaPlan(
        deployment_replicas=_number(wanted, serving, draining, {drain.pod.uid for drain in drains}, view),
        undrain=tuple(Undrain(pod) for pod in back),
        drain=(*_without_start(draining, drains, view), *drains),
        release=releases,
        tell=_to_tell(serving, staying, {pod.uid for pod in back} | {drain.pod.uid for drain in drains}, view),
        events=_events(back, drains, releases, view),
        draining=len(draining),
    )


def _to_undrain(wanted: int, serving: list[Pod], out: list[Pod], view: _View) -> list[Pod]:
    """Pods to take back: when too few serve, or a sound pod drains while one that serves is broken.

    In a roll-out the number of serving pods moves by itself, so only a wanted number above what the
    Deployment stands for counts.
    """
    if view.observed.grouped:
        return groups.to_undrain(wanted, out, view.observed.cut_off)
    best = sorted(out, key=lambda pod: (not view.able(pod), pod.leaving, -view.in_flight(pod), pod.name))
    deployment = view.observed.deployment
    if deployment is not None and view.observed.rollout_in_progress:
        stands_for = deployment.replicas - sum(pod.draining for pod in out)
        return best[: max(wanted - stands_for, 0)]
    missing = wanted - len(serving)
    short = wanted - sum(view.able(pod) for pod in serving)
    sound = sum(view.able(pod) for pod in out)
    return best[: max(missing, min(short, sound), 0)]


def _to_drain(wanted: int, serving: list[Pod], view: _View) -> tuple[Drain, ...]:
    grouped, started = view.observed.grouped, format_time(view.now.wall)
    leaving = groups.to_cut_off(wanted, serving, view.observed.cut_off) if grouped else []
    if not view.observed.rollout_in_progress:
        leaving += groups.to_drain(wanted, view.replicas(wanted), serving, view.able) if grouped else []
        leaving += [] if grouped else sorted(serving, key=view.idlest_first)[: max(len(serving) - wanted, 0)]
    return tuple(Drain(pod, started, DRAINING_COST if view.able(pod) else LEAVING_COST) for pod in leaving)


def _number(wanted: int, serving: list[Pod], draining: list[Pod], leaving: set[str], view: _View) -> int:
    """Of the Deployment: each pod that drains counts. Of a LeaderWorkerSet: none below its number is spared."""
    if not view.observed.grouped:
        return wanted + len(draining)
    if view.observed.rollout_in_progress:
        return groups.number(wanted, view.replicas(wanted), draining)
    stay = [*draining, *(pod for pod in serving if pod.uid not in leaving)]
    return groups.number(wanted, view.replicas(wanted), stay)


def _finished(pod: Pod, view: _View, drain_timeout_s: float) -> Release | None:
    """The end of a drain: a draining engine with nothing in flight, a dead container, or the timeout.

    An idle engine that does not know that it drains is told again, not released: it is ready, and its
    ReplicaSet would take a draining pod in its place.
    """
    took_s = view.drained_s(pod)
    if pod.leaving or took_s is None:
        return None
    sample = view.fresh(pod)
    if _dead(pod):
        return Release(pod, took_s)
    if sample is not None and _dry(sample) and sample.age_s(view.now) + SETTLE_S <= took_s:
        return Release(pod, took_s)
    if took_s >= drain_timeout_s:
        return _timed_out(pod, view, took_s)
    return None


def _timed_out(pod: Pod, view: _View, took_s: float) -> Release:
    """A drained engine takes nothing new, so what it held when it last answered is the most that it holds."""
    last = view.observed.sample(pod)
    if last is None:
        return Release(pod, took_s, None, timed_out=True)
    seen_s = None if view.fresh(pod) else last.age_s(view.now)
    return Release(pod, took_s, last.load.in_flight, timed_out=True, seen_s=seen_s)


def _dead(pod: Pod) -> bool:
    """Nothing runs in it that could be waited for."""
    return not pod.running or (pod.problem is not None and pod.problem.reason in _DEAD)


def _dry(sample: Sample) -> bool:
    """Nothing in flight, and nothing new: an engine without a drain of its own tells no state, and only the Service,
    which leaves it out, keeps requests away.
    """
    return sample.load.state in (EngineState.DRAINING, None) and sample.load.in_flight == 0


def _without_start(draining: list[Pod], drains: tuple[Drain, ...], view: _View) -> list[Drain]:
    """Pods that were taken out by hand, or by a clock ahead of ours: their drain starts now."""
    fresh = {drain.pod.uid for drain in drains}
    started = format_time(view.now.wall)
    lost = [pod for pod in draining if pod.uid not in fresh and (view.drained_s(pod) or 0.0) <= 0]
    return [Drain(pod, started) for pod in lost]


def _to_tell(serving: list[Pod], out: list[Pod], told: set[str], view: _View) -> tuple[Tell, ...]:
    """Engines whose own state differs from the label: a call was lost, or the engine started anew.

    A leaving engine too: one that is ready would outlive a serving pod that is not. No leader whose group lost a pod:
    it comes back as it is.
    """
    cut_off = view.observed.cut_off
    wrong = [
        *((pod, True) for pod in out if _state(pod, view) is EngineState.READY and not cut_off(pod)),
        *((pod, False) for pod in serving if _state(pod, view) is EngineState.DRAINING),
    ]
    return tuple(Tell(pod, drain) for pod, drain in wrong if pod.uid not in told)


def _state(pod: Pod, view: _View) -> EngineState | None:
    sample = view.fresh(pod)
    return None if sample is None else sample.load.state


def _events(back: list[Pod], drains: tuple[Drain, ...], releases: tuple[Release, ...], view: _View) -> tuple[News, ...]:
    notes = []
    if drains:
        pods = ", ".join(f"{drain.pod.name} ({_holds(drain, view)})" for drain in drains)
        notes.append(News(EventReason.DRAINING, f"{len(drains)} to leave: {pods}"))
    notes += [_end(release) for release in releases]
    if back:
        notes.append(News(EventReason.UNDRAINED, f"Back in service: {', '.join(pod.name for pod in back)}"))
    return tuple(notes)


def _holds(drain: Drain, view: _View) -> str:
    if view.observed.cut_off(drain.pod):
        return "a pod of its group is lost"
    if drain.deletion_cost <= LEAVING_COST:
        return "not ready"
    sample = view.fresh(drain.pod)
    held = None if sample is None else sample.load.in_flight
    return "load unknown" if held is None else f"{held} in flight"


def _end(release: Release) -> News:
    name, took = release.pod.name, f"{release.took_s:.0f} s"
    if not release.timed_out:
        return News(EventReason.DRAINED, f"Drained in {took}, 0 aborted: {name}")
    aborted = "an unknown number" if release.aborted is None else release.aborted
    last = "" if release.seen_s is None else f", as last seen {release.seen_s:.0f} s before"
    return News(EventReason.DRAIN_TIMED_OUT, f"Drain timed out after {took}, {aborted} aborted{last}: {name}")
