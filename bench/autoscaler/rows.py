"""What is counted of rounds, and the rows that say it. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.autoscaler.subjects import STEP_PODS, Scaler
from e2e.answers import Answer

WINDOW_S = 5.0
HPA_SYNC_S = 15
"""How often a HorizontalPodAutoscaler is looked at where nobody says otherwise."""


class Round(NamedTuple):
    """What one step did."""

    up_s: float
    most_replicas: int
    slo_lost_s: float
    down_s: float
    scale_downs: int
    requests: int
    cut: int


def slo_lost_s(answers: Sequence[Answer], slo_s: float) -> float:
    """Seconds of windows in which one of twenty answers that were asked for took longer than `slo_s`."""
    windows: dict[int, list[float]] = {}
    for answer in answers:
        windows.setdefault(int(answer.started_s // WINDOW_S), []).append(answer.ended_s - answer.started_s)
    slow = sum(quantile(durations, 0.95) > slo_s for durations in windows.values())
    return slow * WINDOW_S


def quantile(values: Iterable[float], share: float) -> float:
    """The value that `share` of all do not exceed; there must be one."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def summary(scaler: Scaler, rounds: Sequence[Round]) -> dict[str, Any]:
    """One row for all rounds."""
    row = {
        "work": "step-1-to-6",
        "scaler": str(scaler),
        "rounds": len(rounds),
        "step_to_replicas_s": {
            "each": [each.up_s for each in rounds],
            "p50": quantile((each.up_s for each in rounds), 0.5),
            "p95": quantile((each.up_s for each in rounds), 0.95),
        },
        "overshoot": max(each.most_replicas for each in rounds) - STEP_PODS,
        "slo_minutes_lost": round(sum(each.slo_lost_s for each in rounds) / 60, 2),
        "back_to_one_s": [each.down_s for each in rounds],
        "scale_downs": sum(each.scale_downs for each in rounds),
        "requests": sum(each.requests for each in rounds),
        "cut": sum(each.cut for each in rounds),
    }
    return row if scaler is Scaler.BUILTIN else {**row, "hpa_sync_period_s": HPA_SYNC_S}


def against_hpa(ours: Sequence[Round], hpas: Sequence[Round]) -> dict[str, Any]:
    """How much longer a HorizontalPodAutoscaler took; SLO minutes by the round, as there may be more of one."""
    mine_s, its_s = (statistics.median(each.up_s for each in rounds) for rounds in (ours, hpas))
    return {
        "hpa_sync_period_s": HPA_SYNC_S,
        "median_step_to_replicas_s": {Scaler.BUILTIN: mine_s, Scaler.HPA: its_s},
        "times_faster": round(its_s / mine_s, 2) if mine_s else None,
        "slo_minutes_lost_a_round": {Scaler.BUILTIN: _minutes(ours), Scaler.HPA: _minutes(hpas)},
    }


def _minutes(rounds: Sequence[Round]) -> float:
    return round(statistics.mean(each.slo_lost_s for each in rounds) / 60, 3)


def failed(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether our own autoscaler cut an answer, or asked for more pods than the load needs."""
    return any(row["cut"] or row["overshoot"] > 0 for row in rows if row["scaler"] == Scaler.BUILTIN)
