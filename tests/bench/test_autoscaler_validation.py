"""How a recorded round is compared with the simulator's."""

import random

import pytest

from bench.autoscaler.subjects import Scaler, service
from bench.autoscaler.validation import (
    Level,
    Played,
    Record,
    arrivals,
    as_measured,
    mean_token_s,
    moments,
    predicted,
    trace_csv,
    validated,
)
from e2e.answers import Answer
from pagefleet_api import step_costs
from pagefleet_api.metrics import Engine
from pagefleet_api.service import InferenceService
from pagefleet_cli.simulation import Agreement, EngineModel, FleetModel, Request, Trace, timeline
from pagefleet_operator.autoscaling import Policy

FLEET = FleetModel(
    engine=EngineModel(costs=step_costs.default(), kv_tokens=100_000, max_num_seqs=8), start_p50_s=3.0, start_p95_s=4.0
)


def answer(started_s: float, prompt_tokens: int | None = 20) -> Answer:
    return Answer(0, 400, started_s, started_s + 2, prompt_tokens=prompt_tokens, completion_tokens=400)


def levels(*pairs: tuple[float, int]) -> list[Level]:
    return [Level(*pair) for pair in pairs]


def test_loads_that_began_at_different_times_become_one_trace() -> None:
    failed = Answer(0, 400, 0.5, 0.6)
    requests = arrivals([(0.0, [answer(1.0), answer(7.0)]), (6.0, [failed, answer(2.0, 30)])])
    assert requests == [Request(1.0, 20, 400), Request(6.5, 1, 400), Request(7.0, 20, 400), Request(8.0, 30, 400)]
    assert trace_csv(requests).splitlines()[:2] == ["arrival_s,prompt_tokens,output_tokens", "1.0000,20,400"]


def test_two_watches_become_one_timeline_from_the_first_load_on() -> None:
    asked, serving = levels((-2, 9), (-1, 1), (5, 6)), levels((1, 1), (5, 1), (8, 6))
    assert [moment[:3] for moment in moments(asked, serving)] == [(0, 1, 1), (1, 1, 1), (5, 1, 6), (8, 6, 6)]


def test_a_step_that_went_as_the_simulator_says_agrees_with_it() -> None:
    meta = {"name": "stepped", "namespace": "n", "uid": "u"}
    policy = Policy.of(InferenceService.parse({"metadata": meta, "spec": service(Scaler.BUILTIN)["spec"]}))
    assert policy is not None
    requests = [Request(number / 3, 20, 400) for number in range(60)]
    requests += [Request(20 + number / 20, 20, 400) for number in range(400)]
    happened = timeline(policy, Trace(tuple(requests)), FLEET)
    as_said = Record(requests, happened, token_s=0.0045, end_s=40.0)
    stuck = as_said._replace(pods=moments(levels((0, 10)), levels((0, 10))))
    assert predicted(policy, as_said, FLEET, lambda: 0.5) == (1.0, 1.0)
    assert max(predicted(policy, stuck, FLEET, random.Random(1).random)) < 0.5


def test_the_time_of_a_token_is_the_mean_of_all_pods() -> None:
    name = Engine.INTER_TOKEN_LATENCY.name
    pods = [
        f"# TYPE {name} histogram\n{name}_sum 2.0\n{name}_count 100\n",
        f"# TYPE {name} histogram\n{name}_sum 4\n{name}_count 200\n",
    ]
    assert mean_token_s(pods) == 0.02
    assert mean_token_s(["# TYPE other counter\nother_total 3\n"]) is None


def test_steps_become_as_slow_as_measured_and_never_faster() -> None:
    slow = as_measured(FLEET, token_s=0.02, running=6)
    assert slow.engine.costs.step_s(6, 0, 0) == pytest.approx(0.02)
    assert as_measured(FLEET, token_s=0.0001, running=6) == FLEET
    assert as_measured(FLEET, token_s=None, running=6) == FLEET


def test_the_figure_is_the_mean_of_all_rounds() -> None:
    rounds = [Played(Agreement(0.9, 0.8), Agreement(0.99, 0.98)), Played(Agreement(1, 0.9), Agreement(0.99, 0.94))]
    assert validated(rounds) == {
        "agreement_percent": 85.0,
        "agreement_percent_asked": 95.0,
        "with_measured_token": {"agreement_percent": 96.0, "agreement_percent_asked": 99.0},
        "each": [80.0, 90.0],
    }
