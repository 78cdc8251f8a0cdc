"""One service's number in one pass: from what is kept of it and of the others, and from what is seen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pagefleet_api.scaling import MissingMetrics
from pagefleet_api.service import InferenceService
from pagefleet_api.status import Status
from pagefleet_operator.apiserver.cache import ServiceKey
from pagefleet_operator.autoscaling import Claim, Fleet, Memory, Outcome, Policy, decide
from pagefleet_operator.facts.observed import Now, Observed, Pod
from pagefleet_operator.facts.starts import StartLog
from pagefleet_operator.reconciling.passes import Recollection, Scene


def scale(
    key: ServiceKey, kept: Mapping[ServiceKey, Recollection], observed: Observed, live: Status, now: Now
) -> Outcome | None:
    """The autoscaler's decision for one of the services that are kept; None where the number is fixed.

    `live` is the status that the object has: what was known before a restart of the operator.
    """
    own = kept[key]
    own.starts = _learnt(own.starts, observed, now)
    cold_start_s = own.starts.expected_s
    if cold_start_s is None and live.cold_start is not None:
        cold_start_s = live.cold_start.expected.p50_seconds
    reported = None if live.autoscaling is None else live.autoscaling.desired_replicas
    policy = Policy.of(own.service)
    priority = 0 if policy is None else policy.priority
    fleet = Fleet.of(observed, now, reported=reported, cold_start_s=cold_start_s)
    claim = own.claim._replace(priority=priority, resource=fleet.resource)
    own.claim = _claim(claim, own.service, observed, fleet, now)
    if policy is None:
        own.scene = None
        return None
    fleet = replace(fleet, rival=_rival(own.claim, kept, now))
    outcome = decide(policy, fleet, _memory(own, policy), now)
    own.scene = Scene(policy, fleet, outcome.memory, now)
    return outcome


def sample_max_age_s(service: InferenceService) -> float:
    """Older samples of its pods count as missing."""
    scaling = service.spec.autoscaling
    return (MissingMetrics() if scaling is None else scaling.missing_metrics).max_age_seconds


def _memory(own: Recollection, policy: Policy) -> Memory | None:
    """None where the mode changed: a number that was only recommended is not the one that runs."""
    return own.memory if own.scene is None or own.scene.policy.mode is policy.mode else None


def _learnt(log: StartLog, observed: Observed, now: Now) -> StartLog:
    pods = [pod for pod in observed.pods if pod.active]
    told = {pod.uid: measured.weights_s for pod in pods if (measured := observed.measured(pod)) is not None}
    return log.learn({pod.uid: pod.start for pod in pods}, told, now.wall, observed.evidence.pools)


def _claim(claim: Claim, service: InferenceService, observed: Observed, fleet: Fleet, now: Now) -> Claim:
    size = service.spec.engine.parallelism.pipeline if observed.grouped else 1
    replicas = (observed.replica(pod) for pod in observed.pods if pod.active)
    whole = (_placed(replica) for replica in replicas if len(replica) >= size)
    placed = max((time for time in whole if time is not None), default=None)
    template = None if observed.deployment is None else observed.deployment.template
    return claim.seen(now.monotonic_s, waits=fleet.unplaced > 0, placed=placed, template=template)


def _placed(replica: Sequence[Pod]) -> datetime | None:
    """When the last of its pods got a place; None while one has none."""
    times = [pod.start.scheduled for pod in replica]
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None


def _rival(own: Claim, kept: Mapping[ServiceKey, Recollection], now: Now) -> str | None:
    """The service of the highest priority above this one that waits for the same, and has not for too long."""
    claims = [(other.claim, str(key)) for key, other in kept.items() if other.claim.holds(now.monotonic_s)]
    above = [
        (one.priority, name) for one, name in claims if one.resource == own.resource and one.priority > own.priority
    ]
    return max(above)[1] if above else None
