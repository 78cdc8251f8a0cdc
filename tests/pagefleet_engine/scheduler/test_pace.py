"""A goal for the time between two tokens, and prompts that advance all the same."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_engine.scheduler.pace import (
    BUSY_SPREAD_STEPS,
    LEAST_CHUNK_TOKENS,
    LEAST_SHARED_ROWS,
    ROWS_AT_ONCE,
    ROWS_OF_A_TURN,
    SPREAD_STEPS,
    Pace,
    StepBudget,
    StepCosts,
    Work,
    chunk_pairs,
)
from pagefleet_engine.steps import Sampling, SequenceStep, StepPlan
from tests.pagefleet_engine.core.chain_runner import expected_answer
from tests.pagefleet_engine.core.engine_rig import Rig, submit

SECONDS = st.floats(1e-9, 1e3)


def h200_s(work: Work) -> float:
    """An 8B model on an H200: weights are read while tokens are multiplied with them."""
    return 6e-4 + max(3.7e-3, 2.13e-5 * work.tokens) + 3.3e-8 * work.decode_context + 1.1e-9 * work.chunk_pairs


def small_s(work: Work) -> float:
    """A 0.6B model there."""
    return 6e-4 + max(3e-4, 1.6e-6 * work.tokens) + 2.8e-8 * work.decode_context + 4e-10 * work.chunk_pairs


def some_work(dice: random.Random) -> Work:
    decodes = dice.choice((0, 1, 8, 64, 256))
    chunk = dice.choice((0, 0, 256, 1024, 2048, 8192))
    start = dice.choice((0, 0, 4096))
    return Work(
        decodes + chunk + (decodes + chunk == 0), decodes * dice.randrange(100, 2000), chunk_pairs(start, chunk)
    )


@pytest.mark.parametrize("truth", [h200_s, small_s])
def test_the_costs_of_a_machine_are_learnt_within_some_steps(truth: object) -> None:
    assert callable(truth)
    dice = random.Random(3)
    costs = StepCosts()
    for _ in range(60):
        work = some_work(dice)
        costs.learn(work, truth(work) * dice.uniform(0.97, 1.03))
    for decodes in (16, 64, 256):
        for chunk in (1024, 2048, 8192):
            work = Work(decodes + chunk, decodes * 1024, chunk_pairs(0, chunk))
            assert costs.expected_s(work) == pytest.approx(truth(work), rel=0.25)


@pytest.mark.parametrize("slip", [0.0, 1e-6, 5.0, 3600.0])
def test_a_pause_of_the_machine_moves_the_costs_little(slip: float) -> None:
    dice = random.Random(4)
    costs = StepCosts()
    for _ in range(100):
        work = some_work(dice)
        costs.learn(work, h200_s(work))
    work = Work(1100, 64_000, chunk_pairs(0, 1036))
    before = costs.expected_s(work)
    costs.learn(work, slip)
    assert costs.expected_s(work) == pytest.approx(before, rel=0.25)


@given(
    st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 10**6), st.integers(0, 10**9), SECONDS), max_size=30),
    st.integers(0, 100_000),
    st.floats(-1, 10),
)
def test_no_history_gives_negative_costs_and_a_chunk_stays_within_its_seconds(
    history: list[tuple[int, int, int, float]], start: int, seconds: float
) -> None:
    costs = StepCosts()
    for tokens, context, pairs, step_s in history:
        costs.learn(Work(tokens, context, pairs), step_s)
    assert costs.expected_s(Work(1, 0, 0)) >= 0
    tokens = costs.tokens_within(seconds, start)
    assert tokens >= 0
    if 0 < tokens < 1_000_000:
        assert costs.chunk_s(start, tokens) <= seconds * (1 + 1e-6)
        assert costs.chunk_s(start, tokens + 2) >= seconds * (1 - 1e-6)


def test_a_step_that_took_no_time_before_anything_is_known_teaches_nothing() -> None:
    costs = StepCosts()
    before = costs.expected_s(Work(100, 0, 0))
    costs.learn(Work(100, 0, 0), 0.0)
    assert costs.expected_s(Work(100, 0, 0)) == before


def test_costs_that_are_all_nothing_limit_nothing() -> None:
    costs = StepCosts()
    costs._costs = [0.0] * 4
    assert costs.tokens_within(1e-9, 0) >= 1_000_000


def test_a_first_chunk_always_fits_and_later_ones_only_where_there_is_time() -> None:
    budget = StepBudget(1000, StepCosts(), -1.0)
    assert budget.open
    assert budget.chunk(0, 500) == LEAST_CHUNK_TOKENS
    budget.take(0, LEAST_CHUNK_TOKENS)
    assert not budget.open
    budget = StepBudget(10, StepCosts(), -1.0)
    assert budget.chunk(0, 500) == 10
    budget.take(0, 10)
    assert not budget.open
    budget = StepBudget(1000, StepCosts(), 0.01, shared_rows=1000)
    assert LEAST_CHUNK_TOKENS < budget.chunk(0, 1000) < 1000
    budget.take(0, 100)
    assert budget.open


@pytest.mark.parametrize("decodes", [1, 17, 64, 200])
def test_a_chunk_that_the_goal_cuts_fills_whole_tiles_of_rows(decodes: int) -> None:
    budget = StepBudget(8000, StepCosts(), 0.03, rows=decodes)
    assert (decodes + budget.chunk(0, 8000)) % ROWS_AT_ONCE == 0
    assert budget.chunk(0, 300) == 300


def test_the_first_prompt_may_use_the_whole_goal_and_others_join_as_far_as_many_wait() -> None:
    pace = Pace(0.08)
    for backlog, joined in ((1500, 0), (SPREAD_STEPS * 1500, 2 * ROWS_OF_A_TURN - 64 - 1280 - 64)):
        budget = pace.budget(8000, 64, 64 * 1000, backlog_tokens=backlog)
        assert budget.chunk(0, 2048) > 1300
        budget.take(0, 1280)
        budget.take(0, 64)
        assert budget.open == (joined > 0)
        if joined:
            assert budget.chunk(0, 1000) == joined


def test_where_all_steps_have_prompts_already_more_join_at_once() -> None:
    pace = Pace(0.08)

    def shared_rows(steps: int, taken: StepPlan) -> int:
        for _ in range(steps):
            budget = pace.budget(8000, 64, 64 * 1000, backlog_tokens=BUSY_SPREAD_STEPS * 1500)
            pace.learn(taken, h200_s(Work.of(taken)))
        budget.take(0, 64)
        return 128 + budget.chunk(0, 8000)

    decodes, prompt, both = plan(1, 1), plan(1000), plan(1, 1000)
    # who waits and finds no seat makes no step one with a prompt
    assert shared_rows(100, decodes) == LEAST_SHARED_ROWS
    assert shared_rows(10, both) == LEAST_SHARED_ROWS
    assert shared_rows(100, both) == 2 * ROWS_OF_A_TURN
    # steps that nobody decodes in tell nothing, a few without any prompt change nothing, many do
    assert shared_rows(100, prompt) == 2 * ROWS_OF_A_TURN
    assert shared_rows(5, decodes) == 2 * ROWS_OF_A_TURN
    assert shared_rows(50, decodes) == LEAST_SHARED_ROWS


def test_few_rows_are_always_shared_up_to_a_full_tile() -> None:
    budget = Pace(0.05).budget(8000, 10, 10_000, backlog_tokens=400)
    budget.take(0, 100)
    assert budget.open
    assert budget.chunk(0, 5000) == LEAST_SHARED_ROWS - 110


def test_nothing_limits_prompts_while_nobody_waits_for_a_token() -> None:
    budget = Pace(0.001).budget(8000, 0, 0, backlog_tokens=9000)
    assert budget.chunk(0, 9000) == 8000


def plan(*tokens: int) -> StepPlan:
    return StepPlan(
        tuple(
            SequenceStep(
                sequence_id=number, token_ids=(1,) * count, start=8, block_table=(0,), sample=True,
                sampling=Sampling(seed=0),
            )
            for number, count in enumerate(tokens)
        )
    )  # fmt: skip


def test_the_work_of_a_plan_is_its_tokens_contexts_and_pairs() -> None:
    assert Work.of(plan(1, 1, 4)) == Work(6, 18, 4 * 8 + 10)


def test_of_steps_that_only_decode_one_in_some_is_learnt_from() -> None:
    pace = Pace(0.05)
    before = pace.expected_s(plan(1))
    for _ in range(7):
        pace.learn(plan(1), 0.5)
    assert pace.expected_s(plan(1)) == before
    pace.learn(plan(1), 0.5)
    assert pace.expected_s(plan(1)) > before
    later = pace.expected_s(plan(1))
    pace.learn(plan(1, 30), 0.9)
    assert pace.expected_s(plan(1)) != later


def simulate(rig: Rig, seconds_of: object, arrivals: dict[int, list[object]]) -> list[tuple[float, StepPlan]]:
    """Steps with the times that they took, by a machine of this speed."""
    assert callable(seconds_of)
    steps: list[tuple[float, StepPlan]] = []
    turn = 0
    while rig.scheduler.has_work or turn <= max(arrivals):
        for request in arrivals.get(turn, ()):
            rig.submit(request)  # type: ignore[arg-type]
        turn += 1
        planned = rig.plan()
        if planned is None:
            continue
        step_s = seconds_of(Work.of(planned))
        rig.scheduler.complete(planned, rig.runner.compute(planned, lambda: None), step_s)
        rig.read_events()
        steps.append((step_s, planned))
    return steps


def test_steps_that_decode_stay_within_the_goal_once_the_machine_is_known() -> None:
    rig = Rig(20_000, max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=40_000, check=False, pace=Pace(0.05))
    first = [submit(number, range(number, 500 + number), 200, seed=number) for number in range(32)]
    arrivals: dict[int, list[object]] = {0: [*first]}
    arrivals[40] = [submit(99, [number % 900 for number in range(20_000)], 4)]
    steps = simulate(rig, h200_s, arrivals)
    mixed = [
        step_s
        for step_s, planned in steps[10:]
        if planned.sequences[0].tokens == 1 and planned.sequences[-1].tokens > LEAST_CHUNK_TOKENS
    ]
    assert len(mixed) > 5
    assert max(mixed) < 0.06
    assert sorted(mixed)[len(mixed) // 2] > 0.035, "the goal is not used"


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 700), st.integers(0, 20)), min_size=1, max_size=12),
    st.sampled_from([1e-6, 1e-3, 0.05, 10.0]),
    st.sampled_from([1e-6, 1.0, 1e3]),
    st.booleans(),
)
def test_no_goal_and_no_machine_starves_a_prompt_or_changes_an_answer(
    sizes: list[tuple[int, int]], goal_s: float, slowness: float, lookahead: bool
) -> None:
    rig = Rig(400, max_num_batched_tokens=256, pace=Pace(goal_s), lookahead=lookahead, check=False)
    requests = [
        submit(number, [(number + place) % 997 for place in range(tokens)], most, seed=number)
        for number, (tokens, most) in enumerate(sizes)
    ]
    if lookahead:
        rig.submit(*requests)
        rig.run(max_steps=5000)
    else:
        simulate(rig, lambda work: h200_s(work) * slowness, {0: list(requests)})
        for planned in rig.plans:
            chunks = [step for step in planned.sequences if step.tokens > 1]
            assert (
                not chunks
                or chunks[0].tokens >= min(LEAST_CHUNK_TOKENS, 256 - len(planned.sequences))
                or (chunks[0].sample or chunks[0].start + chunks[0].tokens == sizes[chunks[0].sequence_id][0])
            )
    for request in requests:
        answer = expected_answer(request.prompt_token_ids, request.max_tokens, request.sampling.seed)
        assert rig.tokens.get(request.request_id, []) == answer
