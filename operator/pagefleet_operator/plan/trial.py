"""A change of the pods on trial: a few pods of the new template beside the old ones, judged by how they answer.

The new pods are surge pods of the Deployment's own roll-out. A long `minReadySeconds` keeps the controller from going
on by itself, and once they are ready the Deployment is paused until the comparison is over. All that must survive a
restart of the operator is in one annotation of the Deployment (`Trial`).
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.service import Analysis, Rollout
from pagefleet_api.wording import counted
from pagefleet_operator.facts.latencies import Latencies, together
from pagefleet_operator.facts.observed import Now, Observed, Pod
from pagefleet_operator.facts.trials import Phase, Trial
from pagefleet_operator.news import News
from pagefleet_operator.plan.comparison import (
    EARLY_SIGMAS,
    ENOUGH_REQUESTS,
    FINAL_SIGMAS,
    Comparison,
    Measured,
    compare,
)
from pagefleet_operator.plan.rollout import NONE, RollingUpdate, cannot_be_placed

PATIENCE = 4
"""So many times `holdSeconds` a trial waits for enough requests. Who asks for so little is not hurt by a promotion."""

HELD_BACK_S = 600
"""`minReadySeconds` while on trial: an operator may be away for so long before the controller goes on without it."""

_BROKEN = (Reason.CRASH_LOOP, Reason.OUT_OF_MEMORY)

Baseline = Mapping[str, Latencies]
"""By pod uid, what it had measured when the comparison began."""


class Course(NamedTuple):
    """The trial as it goes on, None without one; and what is worth an Event.

    requests: that count so far, of the generation that had fewer; None while nothing is compared.
    """

    trial: Trial | None
    news: tuple[News, ...] = ()
    requests: int | None = None


class Shape(NamedTuple):
    """What a trial makes of the Deployment.

    extra: pods beyond wanted and draining ones. pinned: `pod-template-hash` of the template that it stays at in place
    of the service's; None for that.
    """

    rolling: RollingUpdate
    extra: int = 0
    paused: bool = False
    min_ready_s: int = 0
    pinned: str | None = None


def on_trial(observed: Observed) -> bool:
    """Both generations are being compared."""
    trial = None if observed.deployment is None else observed.deployment.trial
    return trial is not None and trial.phase is Phase.MEASURING


def baseline(before: Baseline, observed: Observed) -> Baseline:
    """What each pod had measured when it was first seen; pods that are gone are forgotten."""
    seen = {pod.uid: measured for pod in observed.pods if (measured := observed.measured(pod)) is not None}
    return {pod.uid: {**seen, **before}[pod.uid] for pod in observed.pods if pod.uid in before or pod.uid in seen}


def measured_since(start: Baseline, observed: Observed) -> Measured | None:
    """What both generations have measured since `start`; None without a trial of a generation that is known."""
    trial = None if observed.deployment is None else observed.deployment.trial
    if trial is None or observed.latest is None:
        return None

    def total(template_hash: str) -> Latencies:
        pods = observed.of_generation(template_hash)
        known = [(pod, measured) for pod in pods if (measured := observed.measured(pod)) is not None]
        return together(now.minus(start[pod.uid]) if pod.uid in start else now for pod, now in known)

    return Measured(total(trial.stable), total(observed.latest.template_hash))


def advance(
    rollout: Rollout, asked: str, wanted: int, observed: Observed, measured: Measured | None, now: Now
) -> Course:
    """The next state of a service's trial.

    asked: digest of the template that the service asks for. A trial begins when that changes while pods serve, and
    ends with the analysis' field, with the last wanted pod, or when no older pod is left to compare with. What was
    taken back stays so, also through a pause, until that changes again.
    """
    live, analysis = observed.deployment, rollout.analysis
    if live is None or analysis is None or live.template is None:
        return Course(None)
    trial, changed = live.trial, asked != live.template
    if trial is not None and not trial.under_way and not changed:
        return Course(trial)
    if wanted == 0:
        return Course(None)
    if changed:
        return _begin(rollout, analysis, wanted, observed, now)
    if trial is None or observed.latest is None:
        return Course(trial)
    if observed.latest.template_hash == trial.stable:
        return Course(None)  # the change was taken back
    if not any(pod.running for pod in observed.of_generation(trial.stable)):
        return _skipped("no pod of the earlier template is left to compare with")
    fresh = observed.of_generation(observed.latest.template_hash)
    if trial.phase is Phase.STARTING:
        return _started(trial, wanted, fresh, observed, now)
    return _measured(trial, analysis, fresh, measured, now)


def shape(course: Course, rolling: RollingUpdate, rollout: Rollout) -> Shape:
    """What the Deployment must look like for the controller to do the trial's part; `rolling` is without one."""
    trial = course.trial
    if trial is None:
        return Shape(rolling)
    beside, instead = RollingUpdate(trial.pods, 0), RollingUpdate(0, trial.pods)
    if trial.phase is Phase.ROLLED_BACK:
        return Shape(instead if trial.replaces else beside, pinned=trial.stable)
    held_back_s = min(HELD_BACK_S, rollout.progress_deadline_seconds - 1)  # the API asks for less than the deadline
    if trial.phase is Phase.STARTING:
        return Shape(instead if trial.replaces else beside, min_ready_s=held_back_s)
    return Shape(instead, trial.extra, paused=True, min_ready_s=held_back_s)


def _begin(rollout: Rollout, analysis: Analysis, wanted: int, observed: Observed, now: Now) -> Course:
    before = None if observed.deployment is None else observed.deployment.trial
    stable = _most_ready(observed) if before is None else before.stable
    if stable is None or not any(pod.ready for pod in observed.of_generation(stable)):
        return Course(None)  # nobody serves: the sooner the change is everywhere, the better
    percent = analysis.traffic_percent
    pods = max(1, round(wanted * percent / (100 - percent)))
    replaces = rollout.max_surge in NONE
    if replaces and pods >= wanted:
        return _skipped("rollout.maxSurge is 0, so that the new pods would take the place of all others")
    trial = Trial(phase=Phase.STARTING, since=now.wall, stable=stable, pods=pods, replaces=replaces)
    words = f"{_pods(pods)} of the new template beside {wanted} for {analysis.hold_seconds} s"
    return Course(trial, (News(EventReason.TRIAL_STARTED, words),))


def _started(trial: Trial, wanted: int, fresh: list[Pod], observed: Observed, now: Now) -> Course:
    live = observed.deployment
    if sum(pod.ready for pod in fresh) >= trial.pods:
        return Course(replace(trial, phase=Phase.MEASURING, since=now.wall))
    if live is not None and live.deadline_exceeded:
        words = live.progressing.message if live.progressing is not None else ""
        return _rolled_back(trial, Reason.PROGRESS_DEADLINE_EXCEEDED, words, now)
    if trial.replaces or not cannot_be_placed(observed, now):
        return Course(trial)
    if trial.pods < wanted:
        return Course(replace(trial, replaces=True))
    return _skipped("the cluster has no room for pods of both templates")


def _measured(trial: Trial, analysis: Analysis, fresh: list[Pod], measured: Measured | None, now: Now) -> Course:
    for pod in fresh:
        if pod.problem is not None and pod.problem.reason in _BROKEN:
            return _rolled_back(trial, Reason.SLO_REGRESSION, f"{pod.name}: {pod.problem.message}", now)
    held, hold = now.wall - trial.since, timedelta(seconds=analysis.hold_seconds)
    over = held >= hold
    found = Comparison(0, (), "nothing could be measured")
    if measured is not None:
        found = compare(analysis, measured, sigmas=FINAL_SIGMAS if over else EARLY_SIGMAS)
    if found.worse:
        return _rolled_back(trial, Reason.SLO_REGRESSION, "; ".join(found.worse), now)
    if over and found.enough:
        return Course(None, (News(EventReason.TRIAL_PASSED, found.words),))
    if held >= hold * PATIENCE:
        few = f"fewer than {ENOUGH_REQUESTS} requests to each in {held.total_seconds():.0f} s"
        words = f"{few}, so nothing was compared, and the change is rolled out: {found.words}"
        return Course(None, (News(EventReason.TRIAL_INCONCLUSIVE, words),))
    return Course(trial, requests=found.requests)


def _rolled_back(trial: Trial, reason: Reason, words: str, now: Now) -> Course:
    back = replace(trial, phase=Phase.ROLLED_BACK, since=now.wall, reason=reason, words=words)
    return Course(back, (News(EventReason.ROLLED_BACK, words),))


def _skipped(why: str) -> Course:
    return Course(None, (News(EventReason.TRIAL_SKIPPED, f"Rolled out without a trial: {why}"),))


def _most_ready(observed: Observed) -> str | None:
    """The generation that serves most; of equals the newer one."""
    counts: dict[str, tuple[int, int]] = {}
    for each in observed.generations:
        ready = sum(pod.ready for pod in observed.of_generation(each.template_hash))
        counts[each.template_hash] = (ready, each.revision or 0)
    return max(counts, key=lambda template_hash: counts[template_hash], default=None)


def _pods(count: int) -> str:
    return counted(count, "pod")
