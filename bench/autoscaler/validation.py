"""A recorded round played again by the simulator: how far its number of pods is from the cluster's. Pure."""

import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from e2e.answers import Answer
from pagefleet_api.metrics import Engine
from pagefleet_cli.simulation import Agreement, FleetModel, Moment, Request, Trace, agreement, timeline
from pagefleet_operator.autoscaling import Policy


class Level(NamedTuple):
    """From `at_s` on, so many pods."""

    at_s: float
    pods: int


class Record(NamedTuple):
    """One round as it went; all times in seconds since the first load began."""

    requests: Sequence[Request]
    pods: Sequence[Moment]
    """As many as the Deployment had, and how many of them got requests."""
    token_s: float | None
    """Between two tokens, by the pods that served the step; None where they did not tell."""
    end_s: float


class Played(NamedTuple):
    """One round in the simulator, by two beliefs of what a token takes."""

    device_costs: Agreement
    """The paced device's alone, as if the machine had a core for every engine."""
    measured_token: Agreement
    """What it took in the same round."""


def arrivals(loads: Iterable[tuple[float, Sequence[Answer]]]) -> list[Request]:
    """The requests of loads that began so many seconds after the first, in the order of their arrival."""
    found = [
        Request(
            arrival_s=began_s + answer.started_s,
            prompt_tokens=answer.prompt_tokens or 1,
            output_tokens=answer.completion_tokens or answer.asked_tokens,
        )
        for began_s, answers in loads
        for answer in answers
    ]
    return sorted(found)


def mean_token_s(expositions: Iterable[str]) -> float | None:
    """Seconds between two tokens of an answer, over all that pods have counted; None where none has been.

    What requests wait for a seat is no part of it, so it is how fast the engines were and not how busy.
    """
    sums = {"sum": 0.0, "count": 0.0}
    for exposition in expositions:
        for family in text_string_to_metric_families(exposition):
            for sample in family.samples:
                base, _, part = sample.name.rpartition("_")
                if base == Engine.INTER_TOKEN_LATENCY.name and part in sums:
                    sums[part] += sample.value
    return sums["sum"] / sums["count"] if sums["count"] else None


def trace_csv(requests: Sequence[Request]) -> str:
    """As `pagefleet simulate --trace` reads it."""
    text = io.StringIO()
    text.write("arrival_s,prompt_tokens,output_tokens\n")
    for request in requests:
        text.write(f"{request.arrival_s:.4f},{request.prompt_tokens},{request.output_tokens}\n")
    return text.getvalue()


def moments(asked: Sequence[Level], serving: Sequence[Level]) -> list[Moment]:
    """Two watches as one timeline, from second 0 on; what they saw before holds until they saw something else."""
    turns = sorted({max(level.at_s, 0.0) for level in (*asked, *serving)} | {0.0})
    return [Moment(when_s, _at(serving, when_s), _at(asked, when_s), "Seen") for when_s in turns]


def _at(levels: Sequence[Level], when_s: float) -> int:
    """What held then; before the first level, that one."""
    held = [level.pods for level in levels if level.at_s <= when_s]
    return held[-1] if held else levels[0].pods


def predicted(policy: Policy | int, record: Record, fleet: FleetModel, draw: Callable[[], float]) -> Agreement:
    """What the simulator makes of the arrivals alone, against what happened."""
    made = timeline(policy, Trace(tuple(record.requests)), fleet, draw)
    return agreement(made, record.pods, record.end_s)


def as_measured(fleet: FleetModel, token_s: float | None, running: int) -> FleetModel:
    """The fleet with steps as slow as they were measured with `running` answers at a time.

    Steps of the paced device take a GPU's time and what the machine needs to serve them on top; on few cores that is
    much. Never faster than the device.
    """
    if token_s is None:
        return fleet
    costs = fleet.engine.costs
    over_s = max(token_s - costs.step_s(running, 0, 0), 0.0)
    slower = costs.model_copy(update={"fixed_s": costs.fixed_s + over_s})
    return replace(fleet, engine=replace(fleet.engine, costs=slower))


def validated(rounds: Sequence[Played]) -> dict[str, Any]:
    """The means over all rounds; `agreement_percent` is of pods that get requests, by the device's costs."""
    return {
        "agreement_percent": _percent(each.device_costs.replicas for each in rounds),
        "agreement_percent_asked": _percent(each.device_costs.desired for each in rounds),
        "with_measured_token": {
            "agreement_percent": _percent(each.measured_token.replicas for each in rounds),
            "agreement_percent_asked": _percent(each.measured_token.desired for each in rounds),
        },
        "each": [_percent([each.device_costs.replicas]) for each in rounds],
    }


def _percent(shares: Iterable[float]) -> float:
    return round(100 * statistics.mean(shares), 1)
