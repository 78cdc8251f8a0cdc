"""Each condition of an InferenceService: True or False, the reason, the cause's words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pagefleet_api.reasons import ConditionType, Reason
from pagefleet_api.service import Analysis, InferenceService
from pagefleet_api.status import MESSAGE_CHARACTERS, Condition
from pagefleet_api.wording import counted, without_middle
from pagefleet_operator.autoscaling.values import Outcome, Verdict
from pagefleet_operator.capacity import UNJUDGED, Judgement
from pagefleet_operator.facts.observed import Now, Observed, Pod, format_second
from pagefleet_operator.facts.trials import Phase, Trial
from pagefleet_operator.plan.comparison import ENOUGH_REQUESTS
from pagefleet_operator.plan.convergence import Conflict, Wait
from pagefleet_operator.plan.trial import PATIENCE
from pagefleet_operator.status.causes import refusal, told
from pagefleet_operator.supplies import Lack

_LATELY = timedelta(minutes=10)
_REQUESTS_STEP = 10
"""Requests of a trial are told in steps of so many: four writes at most."""

Found = dict[ConditionType, Verdict]
_STATUS = {True: "True", False: "False", None: "Unknown"}


@dataclass(frozen=True, slots=True)
class Scene:
    """What conditions are made from."""

    service: InferenceService
    observed: Observed
    wanted: int
    now: Now
    outcome: Outcome | None = None
    """None for fixed replicas."""
    conflicts: Sequence[Conflict] = ()
    waits: Sequence[Wait] = ()
    apply_error: str | None = None
    """The API server's refusal."""
    warnings: Sequence[str] = ()
    """What the user should know, whatever the state."""
    judgement: Judgement = UNJUDGED
    lacks: Sequence[Lack] = ()
    """What pods need and is not there, the urgent first."""
    cached: Verdict | None = None
    """The condition `ModelCached`."""
    trial_requests: int | None = None
    """That a trial has counted, of the generation that had fewer; None where none compares."""
    overdue: str | None = None
    """Words for a roll-out of groups that makes no progress."""
    unserved: str | None = None
    """Why others' autoscalers cannot read the load from this operator; None where they can, or are not meant to."""

    @property
    def serving(self) -> list[Pod]:
        """Pods that are there and not on their way out."""
        return serving(self.observed.pods)

    @property
    def ready(self) -> list[Pod]:
        """Pods that get requests."""
        return [pod for pod in self.serving if pod.ready]

    @property
    def in_trouble(self) -> list[Pod]:
        """Pods whose problems matter: while too few are ready, also those of their groups, those that no kubelet takes
        away, and those that failed lately, whose successors may fail like them.
        """
        if len(self.ready) >= self.wanted:
            return self.serving
        workers = self.observed.workers
        others = [pod for pod in workers if pod.active]
        failed = [pod for pod in (*self.observed.pods, *workers) if _lost(pod) or _failed_lately(pod, self.now)]
        return [*self.serving, *others, *failed]

    @property
    def draining(self) -> list[Pod]:
        """Pods that finish their last answers."""
        return draining(self.observed.pods)


def serving(pods: Iterable[Pod]) -> list[Pod]:
    """Those that are there and not on their way out."""
    return [pod for pod in pods if pod.active and pod.serving]


def draining(pods: Iterable[Pod]) -> list[Pod]:
    """Those that finish their last answers."""
    return [pod for pod in pods if pod.active and pod.draining]


def _lost(pod: Pod) -> bool:
    return pod.terminating and pod.problem is not None and pod.problem.reason is Reason.NODE_LOST


def _failed_lately(pod: Pod, now: Now) -> bool:
    since = None if pod.problem is None else pod.problem.since
    return pod.finished and not pod.terminating and since is not None and now.wall - since < _LATELY


def verdicts(scene: Scene) -> Found:
    """Every condition that exists now. `Reconciling` and `Stalled` exist only while true, and not both."""
    found: Found = {ConditionType.READY: _warning(_ready(scene), scene.warnings)}
    stalled = _stalled(scene)
    reconciling = None if stalled else _reconciling(scene)
    if stalled:
        found[ConditionType.STALLED] = stalled
    if reconciling:
        found[ConditionType.RECONCILING] = reconciling
    if scene.judgement.verdict is not None:
        found[ConditionType.FITS] = scene.judgement.verdict
    if scene.cached is not None:
        found[ConditionType.MODEL_CACHED] = scene.cached
    return {**found, **_scaling(scene)}


def dated(found: Found, generation: int, previous: Sequence[Condition], now: Now) -> tuple[Condition, ...]:
    """As conditions: the transition time moves only when the status does. What a cause says is cut where it is long."""
    before = {condition.type: condition for condition in previous}
    made = []
    for kind, verdict in found.items():
        old, status = before.get(kind), _STATUS[verdict.status]
        kept = old.last_transition_time if old is not None and old.status == status else None
        made.append(
            Condition.model_validate(
                {
                    "type": kind.value,
                    "status": status,
                    "reason": verdict.reason.value,
                    "message": without_middle(verdict.message, MESSAGE_CHARACTERS),
                    "observedGeneration": generation,
                    "lastTransitionTime": kept or format_second(now.wall),
                }
            )
        )
    return tuple(made)


def _ready(scene: Scene) -> Verdict:
    """Whether anything can serve, whatever its generation; if not, the gravest cause."""
    trouble = _trouble(scene)
    if scene.ready:
        words = serve(len(scene.ready), scene.wanted)
        return Verdict(True, Reason.SERVING, words if trouble is None else f"{words}; {trouble.message}")
    if scene.wanted == 0:
        return Verdict(False, Reason.PAUSED, "spec.replicas is 0")
    if trouble is not None:
        return trouble
    if scene.lacks:
        return scene.lacks[0].ready
    return Verdict(False, Reason.STARTING, _to_come(scene))


def _to_come(scene: Scene) -> str:
    """What is waited for where nothing is wrong: a group is made when the leader that has its place is gone."""
    ending = [pod for pod in scene.observed.pods if pod.terminating and scene.observed.own(pod)]
    held = sorted(pod.name for pod in ending if pod.group is not None and pod.group < scene.wanted)
    return f"{held[0]} is ending, and its group is made anew after it" if held else "pods are being created"


def serve(ready: int, wanted: int) -> str:
    """That so many of the pods serve."""
    return f"{ready} of {counted(wanted, 'pod')} {'serves' if ready == 1 else 'serve'}"


def _warning(verdict: Verdict, warnings: Sequence[str]) -> Verdict:
    """The same with the warnings at its end."""
    return Verdict(verdict.status, verdict.reason, "; ".join((verdict.message, *warnings)))


def _trouble(scene: Scene) -> Verdict | None:
    """Why pods are missing or not ready; None when nothing is known to be wrong."""
    if scene.conflicts:
        return Verdict(False, Reason.NAME_CONFLICT, "; ".join(conflict.message for conflict in scene.conflicts))
    urgent = [lack for lack in scene.lacks if lack.urgent]
    if urgent:
        return urgent[0].ready
    seen = scene.observed
    failure = scene.apply_error or (seen.deployment and seen.deployment.replica_failure) or seen.evidence.refused
    if failure:
        return refusal(failure)
    return told(scene.in_trouble, scene.observed.evidence)


def _stalled(scene: Scene) -> Verdict | None:
    if scene.conflicts:
        return Verdict(True, Reason.NAME_CONFLICT, "; ".join(conflict.message for conflict in scene.conflicts))
    if scene.apply_error is not None:
        return refusal(scene.apply_error)._replace(status=True)
    lasting = next((lack.stalled for lack in scene.lacks if lack.stalled is not None), None)
    if lasting is not None:
        return lasting
    deployment = scene.observed.deployment
    trial = None if deployment is None else deployment.trial
    if trial is not None and trial.reason is not None:
        return Verdict(True, trial.reason, f"{trial.words}; the earlier pods stay until the spec changes again")
    if deployment is not None and deployment.deadline_exceeded and deployment.progressing is not None:
        return Verdict(True, Reason.PROGRESS_DEADLINE_EXCEEDED, deployment.progressing.message)
    if scene.overdue is not None:
        return Verdict(True, Reason.PROGRESS_DEADLINE_EXCEEDED, scene.overdue)
    return None


def _reconciling(scene: Scene) -> Verdict | None:
    if scene.waits:
        return Verdict(True, Reason.PREDECESSOR_LEAVING, "; ".join(wait.message for wait in scene.waits))
    coming = [(lack.urgent, lack.reconciling) for lack in scene.lacks if lack.reconciling is not None]
    if coming and coming[0][0]:
        return coming[0][1]
    trial = scene.observed.deployment and scene.observed.deployment.trial
    if trial and trial.under_way:
        return Verdict(
            True, Reason.ON_TRIAL, _on_trial(trial, scene.service.spec.rollout.analysis, scene.trial_requests)
        )
    if coming:
        return coming[0][1]
    if scene.observed.two_templates:
        return Verdict(True, Reason.ROLLING_OUT, "pods are being replaced by those of the latest template")
    if scene.draining:
        names = ", ".join(pod.name for pod in scene.draining)
        return Verdict(True, Reason.DRAINING, f"{names} finish their answers before they go")
    if len(scene.ready) != scene.wanted or len(scene.serving) != scene.wanted:
        return Verdict(True, Reason.SCALING, f"{len(scene.ready)} of {counted(scene.wanted, 'pod')} ready")
    if not scene.observed.settled:
        return Verdict(True, Reason.APPLYING, "the Deployment's controller has not looked at the latest change yet")
    return None


def _on_trial(trial: Trial, analysis: Analysis | None, requests: int | None) -> str:
    """Words that change a few times in a trial, as each other text is one more write."""
    pods = counted(trial.pods, "pod")
    if trial.phase is Phase.STARTING:
        return f"waits for {pods} of the latest template beside the others"
    words = f"compares {pods} of the latest template with the others since {format_second(trial.since)}"
    if analysis is None:
        return words
    hold = timedelta(seconds=analysis.hold_seconds)
    soonest, latest = format_second(trial.since + hold), format_second(trial.since + hold * PATIENCE)
    seen = min((requests or 0) // _REQUESTS_STEP * _REQUESTS_STEP, ENOUGH_REQUESTS)
    so_far = f"at least {seen} of {ENOUGH_REQUESTS} so far"
    needed = f"judged at {soonest} if each had {ENOUGH_REQUESTS} requests by then ({so_far})"
    return f"{words}; {needed}, else at {latest} at the latest"


def _external(service: InferenceService, unserved: str | None) -> Verdict:
    """Who sets the number; nobody may have done so yet."""
    replicas, writer = service.spec.replicas, service.scaled_by
    more = "" if unserved is None else f"; a HorizontalPodAutoscaler cannot read the operator's metrics: {unserved}"
    if writer is None:
        words = f"nobody has set spec.replicas through /scale; it stays {replicas}"
        return Verdict(None, Reason.AWAITS_SCALER, words + more)
    return Verdict(True, Reason.EXTERNALLY_SCALED, f"{writer} set spec.replicas to {replicas} through /scale{more}")


def _scaling(scene: Scene) -> Found:
    outcome, spec = scene.outcome, scene.service.spec
    if outcome is None and spec.autoscaling is not None:
        return {ConditionType.SCALING_ACTIVE: _external(scene.service, scene.unserved)}
    if outcome is None:
        fixed = Verdict(False, Reason.NOT_AUTOSCALED, "spec.autoscaling is absent: spec.replicas is the number")
        return {ConditionType.SCALING_ACTIVE: fixed}
    able = outcome.able
    if spec.replicas != 1 and outcome.acts:
        words = f"spec.replicas {spec.replicas} is ignored while spec.autoscaling is set"
        reason = Reason.REPLICAS_IGNORED if able.reason is Reason.READY_FOR_NEW_SCALE else able.reason
        able = Verdict(able.status, reason, f"{words}; {able.message}")
    return {
        ConditionType.SCALING_ACTIVE: outcome.active,
        ConditionType.ABLE_TO_SCALE: able,
        ConditionType.SCALING_LIMITED: outcome.limited,
    }
