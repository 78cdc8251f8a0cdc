"""Surge and unavailable of the Deployment's rolling update."""

from datetime import timedelta
from typing import NamedTuple

from pagefleet_api.reasons import Reason
from pagefleet_api.service import Rollout
from pagefleet_operator.facts.observed import DeploymentView, Now, Observed, Pod

SURGE_TRIAL = timedelta(seconds=60)
"""So long the scheduler may try to place an extra pod; a full GPU node never can."""

_AUTO = "Auto"
NONE = ("0", "0%")
"""Shares of a number of replicas that are none of them."""


class RollingUpdate(NamedTuple):
    """`strategy.rollingUpdate` as it is rendered: whole numbers or percentages."""

    max_surge: int | str
    max_unavailable: int | str


def rolling_update(rollout: Rollout, observed: Observed, now: Now) -> RollingUpdate:
    """The strategy to render: explicit values as they are; `Auto` is 1 / 0 while the extra pod can be
    placed, else 0 / 1 until this roll-out ends. Never both 0.
    """
    surge, unavailable = rollout.max_surge, rollout.max_unavailable
    full = _cannot_surge(rollout, observed, now)
    if surge == _AUTO and unavailable == _AUTO:
        return RollingUpdate(0, 1) if full else RollingUpdate(1, 0)
    if surge == _AUTO:
        surge = "0" if full and unavailable not in NONE else "1"
    if unavailable == _AUTO:
        unavailable = "1" if full or surge in NONE else "0"
    return RollingUpdate(_wire(surge), _wire(unavailable))


def _cannot_surge(rollout: Rollout, observed: Observed, now: Now) -> bool:
    """The extra pod of this roll-out could not be placed; the live strategy remembers it until the end.

    While the controller has not looked at the latest write, its counts do not tell whether a roll-out is under
    way: the live strategy stays. Else each write would call for the next one.
    """
    live = observed.deployment
    if live is None:
        return False
    before = _chosen_before(rollout, live) if live.trial is None else live.trial.replaces
    if not live.settled:
        return before
    return live.two_templates and (before or cannot_be_placed(observed, now))


def cannot_be_placed(observed: Observed, now: Now) -> bool:
    """The scheduler has tried for SURGE_TRIAL to find a node for a pod of the newest template."""
    return any(
        pod.problem is not None
        and pod.problem.reason is Reason.UNSCHEDULABLE
        and now.wall - (pod.problem.since or pod.created or now.wall) >= SURGE_TRIAL
        for pod in _newest_template((*observed.pods, *observed.workers))
    )


def _chosen_before(rollout: Rollout, live: DeploymentView) -> bool:
    """The live strategy has the side that is ours as it is only after a failed trial."""
    if rollout.max_surge == _AUTO:
        return live.max_surge == "0"
    return rollout.max_unavailable == _AUTO and live.max_unavailable == "1"


def _newest_template(pods: tuple[Pod, ...]) -> list[Pod]:
    """Active pods of the template that the youngest pod has."""
    active = [pod for pod in pods if pod.active]
    youngest = max(active, key=lambda pod: (pod.created is not None, pod.created), default=None)
    return [] if youngest is None else [pod for pod in active if pod.template_hash == youngest.template_hash]


def _wire(share: str) -> int | str:
    return share if share.endswith("%") else int(share)
