"""A pod as a fluid, and how near that comes to the engine's own scheduler with the same costs of a step."""

import random

import pytest

from pagefleet_api import step_costs
from pagefleet_api.step_costs import StepCosts
from pagefleet_cli.simulation import EngineModel, FleetModel, Request, Trace, play
from pagefleet_cli.simulation.pod import SimulatedPod
from pagefleet_cli.simulation.summary import Quantiles
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.scheduler.pace import Pace, Work
from pagefleet_engine.steps import Sampling, SequenceResult, SequenceStep
from pagefleet_engine.wire import Submit
from tests.pagefleet_cli.simulation.build import engine, fleet, trace


def _asked(number: int, one: Request) -> Submit:
    prompt = (1,) * one.prompt_tokens
    return Submit(request_id=number, prompt_token_ids=prompt, max_tokens=one.output_tokens, sampling=Sampling(seed=0))


def _told(step: SequenceStep) -> SequenceResult:
    return SequenceResult(sequence_id=step.sequence_id, token_id=7 if step.sample else None)


def _by_the_scheduler(requests: tuple[Request, ...], model: EngineModel) -> tuple[list[float], float]:
    """Seconds to each first token, and when all was over, step by step."""
    costs, seats, pace = model.costs, model.max_num_seqs, Pace(model.itl_goal_s)
    scheduler = Scheduler(Capacity(131_072, costs.num_kv_blocks, 128_000), seats, 8192, prefix_cache=False, pace=pace)
    now_s, coming = 0.0, 0
    first_s: dict[int, float] = {}
    while coming < len(requests) or scheduler.has_work:
        if not scheduler.has_work:
            now_s = max(now_s, requests[coming].arrival_s)
        while coming < len(requests) and requests[coming].arrival_s <= now_s:
            one = requests[coming]
            scheduler.submit(_asked(coming, one))
            coming += 1
        plan = scheduler.schedule()
        assert plan is not None
        step_s = costs.step_s(*Work.of(plan))
        now_s += step_s
        scheduler.complete(plan, [_told(step) for step in plan.sequences], step_s)
        for event in scheduler.drain_events():
            if event.token_id is not None:
                first_s.setdefault(event.request_id, now_s - requests[event.request_id].arrival_s)
    return list(first_s.values()), now_s


@pytest.mark.parametrize(
    ("number", "per_s", "seats", "answer_tokens"), [(250, 20, 256, 60), (250, 14, 16, 60), (500, 42, 256, 120)]
)
def test_it_foresees_first_tokens_and_the_end_as_the_engine_itself_has_them(
    number: int, per_s: float, seats: int, answer_tokens: int
) -> None:
    dice, when_s, requests = random.Random(5), 0.0, []
    for _ in range(number):
        when_s += dice.expovariate(per_s)
        answer = int(dice.expovariate(1 / answer_tokens)) + 1
        requests.append(Request(when_s, int(dice.expovariate(1 / 900)) + 1, answer))
    costs = step_costs.default()
    model = EngineModel(costs=costs, kv_tokens=costs.num_kv_blocks * 16, max_num_seqs=seats)
    first_s, end_s = _by_the_scheduler(tuple(requests), model)
    run = play(1, Trace(tuple(requests)), FleetModel(engine=model))
    real, fluid = Quantiles.of(first_s), Quantiles.of([each for each in run.first_tokens_s if each is not None])
    assert fluid.p95 == pytest.approx(real.p95, rel=0.1)
    assert fluid.p50 == pytest.approx(real.p50, rel=0.2)
    assert run.end_s == pytest.approx(end_s, rel=0.02)


def test_answers_take_a_step_a_token_and_share_it() -> None:
    run = play(1, trace(Request(0.0, 10, 11), Request(0.0, 10, 11)), fleet())
    assert run.end_s == pytest.approx(1.2, abs=0.11), "ten steps after the prompts'"
    assert run.first_tokens_s[1] == pytest.approx(0.1, abs=0.01)


def test_a_pod_tells_its_load_as_an_engine_does() -> None:
    requests = (Request(0.0, 320, 64), Request(0.0, 320, 64), Request(0.0, 160, 1))
    pod = SimulatedPod(1, engine(max_num_seqs=2), requests, 0.0, 0.0)
    pod.ready = True
    for number in range(3):
        pod.submit(number, 0.0)
    load = pod.load(0.0)
    assert (load.running, load.waiting, load.queued_prompt_tokens) == (2, 1, 160)
    assert load.blocks_used == 40, "both prompts have their blocks"
    assert pod.due_s() > 0
    while pod.in_flight:
        pod.advance(pod.due_s())
    over = pod.load(pod.due_s() if pod.due_s() < 1e9 else 100.0)
    assert (over.running, over.waiting, over.blocks_used) == (0, 0, 0)


def test_costs_of_nothing_are_no_division_by_zero() -> None:
    free = StepCosts(
        name="free", source="made up", fixed_s=0, weights_s=0, token_s=0, context_token_s=0, pair_s=0, num_kv_blocks=100
    )
    assert play(1, trace(Request(1.0, 10, 10)), fleet(costs=free)).end_s == pytest.approx(1.0, abs=0.001)
