"""A decision in words and as inputs of conditions."""

from dataclasses import dataclass

from pagefleet_api.reasons import EventReason, Reason
from pagefleet_api.scaling import MetricType
from pagefleet_api.status import Decision, MetricReading
from pagefleet_api.wording import percent
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.proposals import Proposal, kv_share_per_pod, seats_per_pod
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Clamp, Fleet, Verdict
from pagefleet_operator.facts.observed import Now, format_second
from pagefleet_operator.news import News

NEAR = 0.5
"""Share of a target above which samples are taken often."""

_SHORT = {
    MetricType.WAITING_REQUESTS: "queue",
    MetricType.KV_CACHE_USAGE: "kv",
    MetricType.KV_CACHE_DEMAND: "kv demand",
    MetricType.IN_FLIGHT_REQUESTS: "in flight",
    MetricType.TIME_TO_FIRST_TOKEN: "ttft",
}
_IN_SHARES = (MetricType.KV_CACHE_USAGE, MetricType.KV_CACHE_DEMAND)
_BOUNDS = (Reason.TOO_MANY_REPLICAS, Reason.TOO_FEW_REPLICAS)
_LIMITS = (
    Reason.SCALE_UP_LIMIT,
    Reason.SCALE_DOWN_LIMIT,
    Reason.SCHEDULED,
    Reason.GPU_CAPACITY,
    Reason.CLUSTER_CAPACITY,
    Reason.YIELDS_ROOM,
)
_ROOM = (Reason.GPU_CAPACITY, Reason.CLUSTER_CAPACITY, Reason.YIELDS_ROOM)
_RAISES = (Reason.FALLBACK_REPLICAS, Reason.SCHEDULED, Reason.LOOKAHEAD)
"""Steps that can raise the number where no metric does."""


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
    """ScalingLimited: whether a bound, a rate or the cluster cut the answer."""
    bound, limit = view.clamped_by(*_BOUNDS), view.clamped_by(*_LIMITS)
    if limit is not None and (bound is None or limit.reason in _ROOM):
        return Verdict(True, limit.reason, f"the answer is held at {view.desired}, {limit.cause}")
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
    if any(_is_near(proposal, view.desired) for proposal in view.proposals):
        return True
    return view.readings.in_flight.known >= NEAR * seats_per_pod(view.policy) * view.desired


def _is_near(proposal: Proposal, desired: int) -> bool:
    pods = 1 if proposal.type is MetricType.TIME_TO_FIRST_TOKEN else desired
    return proposal.demand.known >= NEAR * proposal.target * pods


def _why(view: View) -> tuple[str, str]:
    """Reason and message: what moved the number, or the last thing that kept it."""
    if view.desired > view.before and view.answer > view.before:
        return _what_raised(view)
    if view.desired < view.before and view.answer < view.before:
        return Reason.LOAD_FITS_FEWER, _load(view)
    if view.readings.empty and view.clamped_by(*_BOUNDS, *_RAISES) is None:
        verdict = active(view)
        return verdict.reason, verdict.message
    told = [clamp for clamp in view.clamps if clamp.reason is not Reason.SPARE_REPLICAS]
    if told:
        return told[-1].reason, told[-1].words
    return Reason.STEADY, _load(view)


def _what_raised(view: View) -> tuple[str, str]:
    """A step that raised the answer above that of every metric, else the metric that asked for most."""
    step = view.clamped_by(*_RAISES)
    if step is not None:
        return step.reason, step.words
    top = max(view.proposals, key=lambda proposal: proposal.replicas or 0, default=None)
    spare = view.clamped_by(Reason.SPARE_REPLICAS)
    if spare is not None and (top is None or (top.replicas or 0) <= max(view.before - view.policy.spare_replicas, 1)):
        return spare.reason, spare.words
    assert top is not None, "without a metric only a step raises the number"
    if top.type is MetricType.TIME_TO_FIRST_TOKEN:
        return top.type, f"{top.type} asks for {top.replicas}: p95 {_amount(top)}, target {_target(top)}"
    amount, target = _amount(top), _target(top)
    return top.type, f"{top.type} asks for {top.replicas}: {amount} over all pods, target {target} a pod"


def _load(view: View) -> str:
    readings, policy = view.readings, view.policy
    return (
        f"{readings.in_flight.known:g} in flight and {percent(readings.kv.known)} of one pod's KV fit {view.answer} "
        f"(at {seats_per_pod(policy):g} in flight and {percent(kv_share_per_pod(policy))} KV a pod)"
    )


def _reading(proposal: Proposal) -> MetricReading:
    return MetricReading(
        type=proposal.type,
        value=_amount(proposal) if proposal.demand.pods else None,
        target=_target(proposal),
        proposal=proposal.replicas,
    )


def _amount(proposal: Proposal) -> str:
    return _text(proposal.type, proposal.demand.known)


def _target(proposal: Proposal) -> str:
    return _text(proposal.type, proposal.target)


def _text(kind: MetricType, value: float) -> str:
    if kind is MetricType.TIME_TO_FIRST_TOKEN:
        return f"{value:.3g} s"
    return percent(value) if kind in _IN_SHARES else f"{value:g}"


def _target_text(proposal: Proposal) -> str:
    name, mean, target = _SHORT[proposal.type], proposal.demand.per_pod(), proposal.target
    if proposal.type is MetricType.TIME_TO_FIRST_TOKEN:
        known = "?" if mean is None else f"{proposal.demand.known * 1000:.0f}"
        return f"{name} {known}/{target * 1000:.0f} ms"
    if proposal.type in _IN_SHARES:
        return f"{name} {'?' if mean is None else f'{mean * 100:.0f}'}/{target * 100:.0f} %"
    return f"{name} {'?' if mean is None else f'{round(mean, 1):g}'}/{target:g}"
