"""The controller's decision on simulated samples."""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from math import inf
from typing import NamedTuple

from pagefleet_api.metrics import Engine
from pagefleet_cli.simulation.pod import SimulatedPod
from pagefleet_operator.autoscaling import Fleet, Memory, PodLoad, Policy, decide
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.observed import Now

FIXED = "FixedReplicas"
_BOUNDS_S = (*Engine.TIME_TO_FIRST_TOKEN.buckets, inf)


class Answer(NamedTuple):
    """What was decided last, and when that is asked again."""

    desired: int
    reason: str
    next_s: float


class Decision(NamedTuple):
    """One decision in short."""

    reason: str
    desired: int
    watch_closely: bool


class Decider:
    """Keeps what the autoscaler remembers between two decisions."""

    def __init__(self, policy: Policy | int, began: datetime, cold_start_s: float) -> None:
        self._policy, self._began, self._cold_start_s = policy, began, cold_start_s
        self._memory: Memory | None = None
        self._measures = not isinstance(policy, int) and policy.ttft_target_s is not None
        self._first_tokens: dict[int, list[int]] = {}
        self._sums_s: dict[int, float] = {}

    def measured(self, pod: int, first_token_s: float) -> None:
        """A first token came after so long."""
        if not self._measures:
            return
        buckets = self._first_tokens.setdefault(pod, [0] * len(_BOUNDS_S))
        buckets[bisect_left(_BOUNDS_S, first_token_s)] += 1
        self._sums_s[pod] = self._sums_s.get(pod, 0.0) + first_token_s

    def decide(self, pods: Sequence[SimulatedPod], now_s: float) -> Decision:
        """The number for pods that are asked for now."""
        if isinstance(self._policy, int):
            return Decision(FIXED, self._policy, False)
        fleet = Fleet(
            current=len(pods),
            pods=tuple(self._seen(pod, now_s) for pod in pods),
            cold_start_s=self._cold_start_s,
        )
        now = Now(self._began + timedelta(seconds=now_s), now_s)
        outcome = decide(self._policy, fleet, self._memory, now)
        self._memory = outcome.memory
        return Decision(outcome.decision.reason, outcome.desired, outcome.watch_closely)

    def _seen(self, pod: SimulatedPod, now_s: float) -> PodLoad:
        name = f"pod-{pod.number}"
        if not pod.ready:
            return PodLoad(name, ready=False, may_hold=False)
        return PodLoad(name, True, True, pod.load(now_s), 0.0, ttft=self._histogram(pod.number))

    def _histogram(self, pod: int) -> Histogram | None:
        buckets = self._first_tokens.get(pod)
        if buckets is None:
            return None
        return Histogram(_BOUNDS_S, tuple(map(float, accumulate(buckets))), self._sums_s[pod])
