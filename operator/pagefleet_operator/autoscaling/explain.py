"""A decision in words and as inputs of conditions."""

from dataclasses import dataclass

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.scaling import MetricType
from pagefleet_api.status import Decision, MetricReading
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.proposals import Proposal, kv_share_per_pod, seats_per_pod
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Clamp, Fleet, Verdict
from pagefleet_operator.news import News
from pagefleet_operator.observed import Now, format_second

NEAR = 0.5
"""Share of a target above which samples are taken often."""

_SHORT = {
    MetricType.WAITING_REQUESTS: "queue",
    MetricType.KV_CACHE_USAGE: "kv",
    MetricType.KV_CACHE_DEMAND: "kv demand",
    MetricType.IN_FLIGHT_REQUESTS: "in flight",
}
_IN_SHARES = (MetricType.KV_CACHE_USAGE, MetricType.KV_CACHE_DEMAND)
_BOUNDS = (Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS)
_PACES = (Reason.SCALE_UP_LIMIT, Reason.SCALE_DOWN_LIMIT)


@dataclass(frozen=True, slots=True)
class View:
    """All that one decision was made from, and its result."""

    policy: Policy
    fleet: Fleet
    readings: Readings
    proposals: tuple[Proposal, ...]
    began: bool
    """A moment ago: the first samples may still be on their way."""
    before: int
    answer: int
    """Before stabilisation and bounds."""
    desired: int
    clamps: tuple[Clamp, ...]

    @property
    def pending(self) -> int:
        """Pods that were asked for and are not ready; what is only said was asked of nobody."""
        return max(self.before - self.fleet.ready, 0) if self.policy.acts else 0

    def clamped_by(self, *reasons: Reason) -> Clamp | None:
        """The last clamp with one of these reasons."""
        return next((clamp for clamp in reversed(self.clamps) if clamp.reason in reasons), None)


def decision(view: View, now: Now) -> Decision:
    """The record that status, history and `/decisions` keep."""
    reason, message = _why(view)
    return Decision(
        time=format_second(now.wall),
        before=view.before,
        desired=view.desired,
        reason=reason,
        message=message,
        pods_seen=view.readings.in_flight.pods,
        pods_missing=view.readings.in_flight.missing,
        readings=tuple(_reading(proposal) for proposal in view.proposals),
        clamps=tuple(str(clamp) for clamp in view.clamps),
    )


def event(view: View) -> News | None:
    """The Event of a change; None when the number stays."""
    if view.desired == view.before:
        return None
    up = view.desired > view.before
    if not view.policy.acts:
        return News(EventReason.RECOMMENDED, f"Would scale from {view.before} to {view.desired}: {_why(view)[1]}")
    words = f"Scaled from {view.before} to {view.desired}: {_why(view)[1]}"
    return News(EventReason.SCALED_UP if up else EventReason.SCALED_DOWN, words)


def active(view: View) -> Verdict:
    """ScalingActive: whether the decision stands on samples."""
    if view.readings.empty:
        if view.fleet.ready and view.began:
            return Verdict(True, Reason.WAITING_FOR_METRICS, "the first samples are on their way")
        if view.fleet.ready:
            return Verdict(False, Reason.METRICS_STALE, f"no sample younger than {view.policy.max_age_s:g} s: held")
        return Verdict(False, Reason.WAITING_FOR_METRICS, "no pod is ready: the number is held")
    if view.readings.in_flight.missing or not view.readings.complete:
        return Verdict(True, Reason.METRICS_PARTIAL, "some pods give no usable sample; missing is not read as zero")
    return Verdict(True, Reason.VALID_METRICS, "every pod gives samples")


def able(view: View) -> Verdict:
    """AbleToScale: what keeps the number, for the moment."""
    if not view.policy.acts:
        words = f"autoscaling.mode is Recommend: {view.desired} would serve, spec.replicas is the number"
        return Verdict(False, Reason.RECOMMEND_ONLY, words)
    if view.fleet.rollout_in_progress:
        return Verdict(True, Reason.ROLLOUT_IN_PROGRESS, "no scale-down during a roll-out")
    if view.clamped_by(Reason.STABILIZED):
        return Verdict(True, Reason.STABILIZED, "an answer within the stabilisation window is calmer than the latest")
    if view.pending:
        return Verdict(True, Reason.PENDING_PODS, "pods that were asked for are not ready yet and count as supply")
    return Verdict(True, Reason.READY_FOR_NEW_SCALE, "the number follows the load")


def limited(view: View) -> Verdict:
    """ScalingLimited: whether a bound or a rate cut the answer."""
    bound, pace = view.clamped_by(*_BOUNDS), view.clamped_by(*_PACES)
    if bound is None and pace is not None:
        return Verdict(True, pace.reason, pace.words)
    if bound is None:
        return Verdict(False, Reason.WITHIN_RANGE, "the answer lies within minReplicas and maxReplicas")
    field = "maxReplicas" if bound.reason is Reason.TOO_MANY_REPLICAS else "minReplicas"
    return Verdict(True, bound.reason, f"the answer is held at {field} {view.desired}")


def targets(view: View) -> str:
    """Each metric in use against its target, mean of the pods: "kv 40/75 %, queue 2/4"; "?" is missing."""
    return ", ".join(_target_text(proposal) for proposal in view.proposals)


def watch_closely(view: View) -> bool:
    """Whether the next seconds may change the answer."""
    if view.pending or not view.readings.complete or view.answer != view.desired:
        return True
    loads = [(proposal.demand.known, proposal.target) for proposal in view.proposals]
    loads.append((view.readings.in_flight.known, seats_per_pod(view.policy)))
    return any(demand >= NEAR * target * view.desired for demand, target in loads)


def _why(view: View) -> tuple[str, str]:
    """Reason and message: what moved the number, or the last thing that kept it."""
    bound = view.clamped_by(*_BOUNDS)
    if view.desired > view.before and view.answer > view.before and not view.readings.empty:
        top = max(view.proposals, key=lambda proposal: proposal.replicas or 0)
        return (
            top.type,
            f"{top.type} asks for {top.replicas}: {_amount(top)} over all pods, target {_target(top)} a pod",
        )
    if view.desired < view.before and view.answer < view.before:
        return Reason.LOAD_FITS_FEWER, _load(view)
    fallback = view.clamped_by(Reason.FALLBACK_REPLICAS)
    if fallback is not None and view.desired > view.before:
        return fallback.reason, fallback.words
    if view.readings.empty and bound is None:
        verdict = active(view)
        return verdict.reason, verdict.message
    if view.clamps:
        return view.clamps[-1].reason, view.clamps[-1].words
    return Reason.STEADY, _load(view)


def _load(view: View) -> str:
    readings, policy = view.readings, view.policy
    return (
        f"{readings.in_flight.known:g} in flight and {readings.kv.known:.0%} of one pod's KV fit {view.answer} "
        f"(at {seats_per_pod(policy):g} in flight and {kv_share_per_pod(policy):.0%} KV a pod)"
    )


def _reading(proposal: Proposal) -> MetricReading:
    return MetricReading(
        type=proposal.type,
        value=_amount(proposal) if proposal.demand.pods else None,
        target=_target(proposal),
        proposal=proposal.replicas,
    )


def _amount(proposal: Proposal) -> str:
    known = proposal.demand.known
    return f"{known:.0%}" if proposal.type in _IN_SHARES else f"{known:g}"


def _target(proposal: Proposal) -> str:
    return f"{proposal.target:.0%}" if proposal.type in _IN_SHARES else f"{proposal.target:g}"


def _target_text(proposal: Proposal) -> str:
    mean = proposal.demand.per_pod()
    if proposal.type in _IN_SHARES:
        return f"{_SHORT[proposal.type]} {'?' if mean is None else f'{mean * 100:.0f}'}/{proposal.target * 100:.0f} %"
    return f"{_SHORT[proposal.type]} {'?' if mean is None else f'{round(mean, 1):g}'}/{proposal.target:g}"
