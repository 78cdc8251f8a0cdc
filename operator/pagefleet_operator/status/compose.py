"""The status as a whole."""

from collections.abc import Sequence

from pagefleet_api import labels
from pagefleet_api.reasons import ConditionType, Reason
from pagefleet_api.service import InferenceService
from pagefleet_api.status import AutoscalingStatus, ColdStart, StartPhases, Status
from pagefleet_operator.autoscaling.values import Outcome, Verdict
from pagefleet_operator.capacity import UNJUDGED, Judgement
from pagefleet_operator.observed import Now, Observed
from pagefleet_operator.plan.convergence import Conflict, Wait
from pagefleet_operator.plan.prefetch import Prefetch
from pagefleet_operator.starts import StartLog
from pagefleet_operator.status.conditions import Scene, dated, verdicts

HISTORY_LIMIT = 10


def service_status(
    service: InferenceService,
    observed: Observed,
    wanted: int,
    outcome: Outcome | None,
    previous: Status,
    now: Now,
    *,
    conflicts: Sequence[Conflict] = (),
    waits: Sequence[Wait] = (),
    apply_error: str | None = None,
    warnings: Sequence[str] = (),
    judgement: Judgement = UNJUDGED,
    starts: StartLog | None = None,
    prefetch: Prefetch | None = None,
) -> Status:
    """The status to report.

    Give it what is observed after the pass, its own writes included: else it says of the new generation what was
    true before. `outcome` is None for fixed replicas, `apply_error` the API server's refusal. Transition times, the
    history, the last scale time, and cold starts where `starts` has none yet, come from `previous`. `warnings` is what
    the user should know, whatever the state, `prefetch` how far a cached model is.
    """
    scene = Scene(service, observed, wanted, now, outcome, conflicts, waits, apply_error, warnings, judgement, prefetch)
    selector = labels.selector(service.name)
    return Status(
        observed_generation=service.generation,
        replicas=len(scene.serving),
        ready_replicas=len(scene.ready),
        updated_replicas=observed.deployment.updated if observed.deployment else 0,
        draining_replicas=len(scene.draining),
        selector=",".join(f"{name}={value}" for name, value in sorted(selector.items())),
        url=f"http://{service.child_name}.{service.namespace}.svc/v1",
        ready=f"{len(scene.ready)}/{wanted}",
        targets=None if outcome is None else outcome.targets,
        capacity=judgement.capacity,
        autoscaling=None if outcome is None else _autoscaling(outcome, previous.autoscaling),
        cold_start=_cold_start(starts) or previous.cold_start,
        conditions=dated(verdicts(scene), service.generation, previous.conditions, now),
    )


def invalid_status(message: str, generation: int, previous: Status, now: Now) -> Status:
    """For an object that cannot be parsed: what runs goes on, so all but the verdict stays as it was.

    `message` names each field and what it takes, as `InvalidService` does.
    """
    kept = [
        condition.model_copy(update={"observed_generation": generation})
        for condition in previous.conditions
        if condition.type not in _REPLACED
    ]
    verdict = Verdict(False, Reason.INVALID_SPEC, message)
    stalled = Verdict(True, Reason.INVALID_SPEC, "the spec cannot be used; see Ready")
    found = {ConditionType.READY: verdict, ConditionType.STALLED: stalled}
    conditions = (*dated(found, generation, previous.conditions, now), *kept)
    return previous.model_copy(update={"observed_generation": generation, "conditions": conditions})


_REPLACED = (ConditionType.READY, ConditionType.STALLED, ConditionType.RECONCILING)


def _cold_start(starts: StartLog | None) -> ColdStart | None:
    medians = None if starts is None else starts.medians()
    if starts is None or medians is None:
        return None
    return ColdStart(
        starts=len(starts.phases),
        p50_seconds=round(starts.quantile(0.5) or 0.0),
        p95_seconds=round(starts.quantile(0.95) or 0.0),
        phases=StartPhases(
            schedule_seconds=round(medians.schedule_s),
            image_seconds=round(medians.image_s),
            weights_seconds=None if medians.weights_s is None else round(medians.weights_s),
            warm_up_seconds=round(medians.warm_up_s),
        ),
    )


def _autoscaling(outcome: Outcome, previous: AutoscalingStatus | None) -> AutoscalingStatus:
    before = previous or AutoscalingStatus()
    decision = outcome.decision
    changed = decision.before != decision.desired
    return AutoscalingStatus(
        desired_replicas=decision.desired,
        last_scale_time=decision.time if changed else before.last_scale_time,
        last_decision=decision,
        history=(decision, *before.history)[:HISTORY_LIMIT] if changed else before.history,
    )
