"""A run in figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pagefleet_cli.simulation.values import Moment, Refused, Run

MINUTE_S = 60.0
SLO_SHARE = 0.05
"""A minute is lost when more of its requests than this wait too long for their first token."""


class Minute(NamedTuple):
    """The requests that came within a minute."""

    start_s: float
    requests: int
    first_token_p95_s: float | None
    """Of those that got one."""
    lost: bool
    """More than 5 % waited longer than the goal, or got nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Of a time, in seconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quantiles":
        """The nearest ranks."""
        ordered = sorted(values)
        return cls(p50=_rank(ordered, 0.50), p95=_rank(ordered, 0.95), p99=_rank(ordered, 0.99))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run cost, and how its requests fared."""

    name: str
    timeline: tuple[Moment, ...]
    gpu_hours: float
    cost: float | None
    """GPU hours at their price; None without a price."""
    queue_wait_s: Quantiles
    """From arrival to a seat."""
    first_token_s: Quantiles
    slo_s: float
    minutes: tuple[Minute, ...]
    slo_violation_minutes: int
    direction_changes: int
    requests: int
    completed: int
    refused: int
    refusals: tuple[Refused, ...]
    aborted: int
    most_replicas: int
    """Ready at the same time."""
    mean_replicas: float
    """Pods that existed, starting and draining ones too, over the time."""
    duration_s: float


def summarise(name: str, run: Run, *, gpus_per_pod: int, gpu_price: float | None, slo_s: float) -> Summary:
    """The figures of a run; `slo_s`: what 95 of 100 requests may wait for their first token."""
    by_minute = minutes(run, slo_s)
    gpu_hours = run.pod_seconds * gpus_per_pod / 3600
    return Summary(
        name=name,
        timeline=run.timeline,
        gpu_hours=gpu_hours,
        cost=None if gpu_price is None else gpu_hours * gpu_price,
        queue_wait_s=Quantiles.of(run.queue_waits_s),
        first_token_s=Quantiles.of([first_s for first_s in run.first_tokens_s if first_s is not None]),
        slo_s=slo_s,
        minutes=by_minute,
        slo_violation_minutes=sum(minute.lost for minute in by_minute),
        direction_changes=direction_changes(run.timeline),
        requests=len(run.trace.requests),
        completed=run.completed,
        refused=run.refused,
        refusals=run.refusals,
        aborted=run.aborted,
        most_replicas=max(moment.replicas for moment in run.timeline),
        mean_replicas=run.pod_seconds / run.end_s if run.end_s else float(run.timeline[0].replicas),
        duration_s=run.end_s,
    )


def minutes(run: Run, slo_s: float) -> tuple[Minute, ...]:
    """The minutes in which requests came, each with what became of those."""
    by_minute: dict[int, list[float]] = {}
    for request, first_s in zip(run.trace.requests, run.first_tokens_s, strict=True):
        waits_s = by_minute.setdefault(int(request.arrival_s // MINUTE_S), [])
        waits_s.append(math.inf if first_s is None else first_s)
    return tuple(_minute(number, waits_s, slo_s) for number, waits_s in sorted(by_minute.items()))


def _minute(number: int, waits_s: Sequence[float], slo_s: float) -> Minute:
    late = sum(first_s > slo_s for first_s in waits_s)
    answered = sorted(first_s for first_s in waits_s if first_s < math.inf)
    return Minute(number * MINUTE_S, len(waits_s), _rank(answered, 0.95), late > SLO_SHARE * len(waits_s))


def direction_changes(timeline: Sequence[Moment]) -> int:
    """How often the wanted number turned from rising to falling or back."""
    turns, direction = 0, 0
    for before, after in pairwise(timeline):
        moved = (after.desired > before.desired) - (after.desired < before.desired)
        turns += moved != 0 and direction == -moved
        direction = moved or direction
    return turns


def _rank(ordered: Sequence[float], share: float) -> float | None:
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else None
