"""Surge and unavailable of the Deployment's rolling update."""

from typing import NamedTuple

from pagefleet_api.service import Rollout
from pagefleet_operator.observed import Now, Observed


class RollingUpdate(NamedTuple):
    """`strategy.rollingUpdate` as it is rendered: whole numbers or percentages."""

    max_surge: int | str
    max_unavailable: int | str


def rolling_update(rollout: Rollout, observed: Observed, now: Now) -> RollingUpdate:
    """The strategy to render for `rollout`, given what is observed."""
    raise NotImplementedError
