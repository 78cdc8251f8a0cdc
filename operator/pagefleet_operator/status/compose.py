"""The status as a whole."""

from typing import TypedDict

from pagefleet_api import labels
from pagefleet_api.reasons import Reason
from pagefleet_api.service import InferenceService
from pagefleet_api.status import AutoscalingStatus, ColdStart, Decision, PoolStart, StartPhases, Status
from pagefleet_operator import published
from pagefleet_operator.autoscaling.values import Outcome
from pagefleet_operator.facts.observed import Now, Observed, format_second
from pagefleet_operator.facts.starts import POOLS_KEPT, StartLog
from pagefleet_operator.status.conditions import Scene, dated, verdicts

HISTORY_LIMIT = 10


def service_status(scene: Scene, previous: Status, starts: StartLog | None = None) -> Status:
    """The status to report.

    Give the scene what is observed after the pass, its own writes included: else it says of the new generation what
    was true before. Transition times, the history, the last scale time, and cold starts where `starts` has none yet,
    come from `previous`.
    """
    service, observed, now = scene.service, scene.observed, scene.now
    decision, targets = _decided(service, observed, scene.outcome, previous.autoscaling, now)
    return Status(
        observed_generation=service.generation,
        replicas=len(scene.serving),
        ready_replicas=len(scene.ready),
        updated_replicas=observed.deployment.updated if observed.deployment else 0,
        draining_replicas=len(scene.draining),
        selector=labels.selector_text(service.name),
        url=f"http://{service.child_name}.{service.namespace}.svc/v1",
        ready=f"{len(scene.ready)}/{scene.wanted}",
        targets=targets,
        gpus=service.spec.gpus_of_replica,
        capacity=scene.judgement.capacity,
        autoscaling=_autoscaling(decision, previous.autoscaling),
        cold_start=_cold_start(starts) or previous.cold_start,
        conditions=dated(verdicts(scene), service.generation, previous.conditions, now),
    )


def _decided(
    service: InferenceService,
    observed: Observed,
    outcome: Outcome | None,
    previous: AutoscalingStatus | None,
    now: Now,
) -> tuple[Decision | None, str | None]:
    """Why the number is what it is, and the load; both None where it is fixed."""
    if outcome is not None:
        return outcome.decision, outcome.targets
    if service.spec.autoscaling is None:
        return None, None
    followed = _followed(service, observed, previous, now)
    return followed, followed.message


def _followed(service: InferenceService, observed: Observed, previous: AutoscalingStatus | None, now: Now) -> Decision:
    """A number that others set, with the load that they could see; without targets, as they have those."""
    replicas = service.spec.replicas
    before = None if previous is None else previous.desired_replicas
    seen, pods = published.of_pods(service, observed, now), observed.pods
    return Decision(
        time=format_second(now.wall),
        before=replicas if before is None else before,
        desired=replicas,
        reason=Reason.AWAITS_SCALER if service.scaled_by is None else Reason.EXTERNALLY_SCALED,
        message=published.words(service, observed, now),
        pods_seen=len(seen),
        pods_missing=sum(pod.active and pod.serving and pod.ready and pod.name not in seen for pod in pods),
    )


class _Summary(TypedDict):
    """What is told of starts, of one pool or of all."""

    starts: int
    p50_seconds: int
    p95_seconds: int
    phases: StartPhases


def _cold_start(starts: StartLog | None) -> ColdStart | None:
    if starts is None or not starts.phases:
        return None
    pools = tuple(PoolStart(pool=name, **_summary(log)) for name, log in starts.by_pool.items())
    return ColdStart(**_summary(starts.latest), pools=pools[:POOLS_KEPT])


def _summary(log: StartLog) -> _Summary:
    medians = log.medians()
    return _Summary(
        starts=len(log.phases),
        p50_seconds=round(log.quantile(0.5) or 0.0),
        p95_seconds=round(log.quantile(0.95) or 0.0),
        phases=StartPhases(
            schedule_seconds=round(medians.schedule_s),
            image_seconds=round(medians.image_s),
            weights_seconds=None if medians.weights_s is None else round(medians.weights_s),
            warm_up_seconds=round(medians.warm_up_s),
        ),
    )


def _autoscaling(decision: Decision | None, previous: AutoscalingStatus | None) -> AutoscalingStatus | None:
    if decision is None:
        return None
    before = previous or AutoscalingStatus()
    changed = decision.before != decision.desired
    return AutoscalingStatus(
        desired_replicas=decision.desired,
        last_scale_time=decision.time if changed else before.last_scale_time,
        last_decision=decision,
        history=(decision, *before.history)[:HISTORY_LIMIT] if changed else before.history,
    )
