"""Demand over a fleet, with what is missing kept apart from what is zero."""

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pagefleet_api.load import EngineState, Load
from pagefleet_api.wording import percent
from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.values import Fleet, PodLoad

N = TypeVar("N", int, float)


class Demand(NamedTuple):
    """One metric summed over pods."""

    known: float
    """Sum over the pods that gave a usable reading."""
    pods: int
    """Pods that gave one."""
    missing: int
    """Pods that may hold load and gave none."""

    def at_least(self) -> float:
        """For the question whether more pods are needed: a silent pod counts as empty."""
        return self.known

    def at_most(self, target: float) -> float:
        """For the question whether fewer would do: a silent pod counts as at `target`."""
        return self.known + self.missing * target

    def per_pod(self) -> float | None:
        """Mean over the pods with a reading."""
        return self.known / self.pods if self.pods else None


_UNTOLD = Demand(0, 0, 0)
"""Of a metric that the engine never tells: nothing is known, and nothing is missing."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What the pods say, as sums."""

    waiting: Demand
    in_flight: Demand
    kv: Demand
    """In whole pods: 1.5 is one and a half pools of blocks."""
    kv_demand: Demand
    """The same with the prompts that wait, so that it may pass what there is."""
    oldest_age_s: float | None
    """Age of the oldest sample in use."""

    @property
    def coverage(self) -> float:
        """Share of the pods that may hold load and say how much, 0..1."""
        pods = self.in_flight.pods + self.in_flight.missing
        return self.in_flight.pods / pods if pods else 0.0

    def thin(self, policy: Policy) -> str | None:
        """In words, that too few pods tell their load for a way down; None where enough do."""
        if self.coverage >= policy.min_coverage:
            return None
        return f"samples from {percent(self.coverage)} of the pods, minCoverage is {percent(policy.min_coverage)}"

    @property
    def complete(self) -> bool:
        """Every metric that the engine tells has at least one reading."""
        return min(self.waiting.pods, self.in_flight.pods) > 0 and (self.kv.pods > 0 or self.kv is _UNTOLD)

    @property
    def empty(self) -> bool:
        """No metric has any."""
        return max(self.waiting.pods, self.in_flight.pods, self.kv.pods) == 0


class _Reading(NamedTuple):
    waiting: int | None
    in_flight: int | None
    kv: float | None
    kv_demand: float | None


_SILENT = _Reading(None, None, None, None)


def read(fleet: Fleet, policy: Policy) -> Readings:
    """Sums over `fleet`; what is older than `policy.max_age_s` or cannot be true is missing."""
    fresh = [(pod, _fresh(pod, policy)) for pod in fleet.pods]
    readings = [
        _SILENT if load is None else _reading(load, policy)
        for pod, load in fresh
        if load is not None or pod.may_hold or pod.ready
    ]
    ages = [pod.age_s for pod, load in fresh if load is not None and pod.age_s is not None]
    return Readings(
        waiting=_sum([reading.waiting for reading in readings]),
        in_flight=_sum([reading.in_flight for reading in readings]),
        kv=_sum([reading.kv for reading in readings]) if policy.tells_kv else _UNTOLD,
        kv_demand=_sum([reading.kv_demand for reading in readings]) if policy.tells_kv else _UNTOLD,
        oldest_age_s=max(ages, default=None),
    )


def _fresh(pod: PodLoad, policy: Policy) -> Load | None:
    if pod.load is None or pod.age_s is None or pod.age_s > policy.max_age_s:
        return None
    return None if pod.load.state is EngineState.FAILED else pod.load


def _reading(load: Load, policy: Policy) -> _Reading:
    """The believable parts: no engine holds more requests than its seats and its queue (once more the
    seats, as a request that just came counts before it is placed), nor uses blocks that it has not.
    """
    seats = max(load.max_num_seqs or 0, policy.max_num_seqs)
    limit = math.inf if policy.max_queued_requests is None else policy.max_queued_requests + seats
    waiting = _believed(load.waiting, limit)
    in_flight = None if waiting is None else _believed(load.in_flight, limit + seats)
    kv = _believed(load.kv_usage, 1)
    return _Reading(waiting, in_flight, kv, None if waiting is None else _demand(kv, load))


def _believed(value: N | None, most: float) -> N | None:
    return value if value is not None and value <= most else None


def _demand(kv: float | None, load: Load) -> float | None:
    """With the prompts that wait; an engine that does not tell their tokens has no such demand."""
    if kv is None or load.queued_prompt_tokens is None or load.blocks_total is None or load.block_size is None:
        return None
    return kv + load.queued_prompt_tokens / (load.blocks_total * load.block_size)


def _sum(values: list[int | None] | list[float | None]) -> Demand:
    known = [value for value in values if value is not None]
    return Demand(sum(known), len(known), len(values) - len(known))
