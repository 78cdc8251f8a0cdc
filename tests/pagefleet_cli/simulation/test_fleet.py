import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefleet_api.behavior import RateUnit
from pagefleet_api.scaling import Mode
from pagefleet_cli.rehearsal.report import reasons
from pagefleet_cli.simulation import Balancing, Refusal, Refused, Request, Run, Trace, play, summarise, timeline
from pagefleet_operator.autoscaling import Policy
from pagefleet_operator.autoscaling.policy import Rate, Rules
from tests.pagefleet_cli.simulation.build import fleet, steady, trace

QUICK_DOWN = Rules(window_s=10, rates=(Rate(RateUnit.PERCENT, 100, 1),))
POLICY = Policy(min_replicas=1, max_replicas=6, in_flight_target=4, waiting_target=4, max_num_seqs=8, lookahead_s=0)


def numbers(run: Run) -> list[int]:
    """What was asked for, repeats left out."""
    found = [moment.desired for moment in run.timeline]
    return [each for place, each in enumerate(found) if place == 0 or found[place - 1] != each]


def test_without_load_the_least_number_stays() -> None:
    run = play(POLICY, trace(Request(600.0, 10, 1)), fleet())
    assert [moment[1:3] for moment in run.timeline] == [(1, 1)]
    assert run.pod_seconds == pytest.approx(run.end_s)
    assert run.end_s == pytest.approx(600.1)


def test_nothing_at_all_is_over_at_once() -> None:
    run = play(POLICY, trace(), fleet())
    assert (run.end_s, run.pod_seconds, run.completed) == (0, 0, 0)


def test_a_step_of_load_reaches_the_number_that_its_seats_need() -> None:
    # 2.8 a second for 5 s each are 14 in flight, four a pod: 4 pods
    run = play(POLICY, trace(*steady(0.2, 60), *steady(2.8, 300, 60)), fleet(max_num_seqs=64))
    assert run.timeline[-1][1:3] == (4, 4)
    up = [moment.t for moment in run.timeline if moment.desired == 4]
    assert 60 < up[0] < 70, "asked for within seconds"
    ready = next(moment.t for moment in run.timeline if moment.replicas == 4)
    assert ready >= up[0] + 10 - 0.001, "and there after the cold start"


def test_when_the_load_is_gone_pods_drain_and_nobody_is_cut_off() -> None:
    policy = Policy(min_replicas=1, max_replicas=6, in_flight_target=4, max_num_seqs=8, down=QUICK_DOWN, lookahead_s=0)
    run = play(policy, trace(*steady(3, 60), *steady(0.1, 200, 60)), fleet())
    assert numbers(run)[-1] == 1
    assert (run.completed, run.aborted, run.refusals) == (len(run.trace.requests), 0, ())
    assert run.pod_seconds < 6 * 200


def test_who_drains_is_taken_back_when_load_returns() -> None:
    policy = Policy(min_replicas=1, max_replicas=2, in_flight_target=4, max_num_seqs=8, down=QUICK_DOWN, lookahead_s=0)
    long = [Request(20 + place / 10, 10, 1000) for place in range(4)]
    run = play(policy, trace(*sorted([*steady(1.6, 30), *long, *steady(1.6, 100, 60)])), fleet(start_s=5))
    assert numbers(run)[:4] == [1, 2, 1, 2]
    back = next(place for place, one in enumerate(run.timeline) if one.t > 60 and one.desired == 2)
    assert [one.replicas for one in run.timeline[back - 1 : back + 1]] == [1, 2], "ready at once, without a start"
    assert run.aborted == 0


def test_a_drain_that_takes_too_long_cuts_its_answers_off() -> None:
    policy = Policy(min_replicas=1, max_replicas=2, in_flight_target=4, max_num_seqs=8, down=QUICK_DOWN, lookahead_s=0)
    long = [Request(20 + place / 10, 10, 1000) for place in range(4)]
    run = play(policy, trace(*sorted([*steady(1.6, 30), *long])), fleet(start_s=5, drain_timeout_s=20))
    assert run.aborted == 2
    words = "p: 2 requests aborted: the drain of the pod took longer than drain.timeoutSeconds; raise it"
    assert reasons(summarise("p", run, gpus_per_pod=1, gpu_price=None, slo_s=1.0)) == [words]
    assert run.completed == len(run.trace.requests) - 2


def test_a_full_queue_and_a_prompt_beyond_the_window_are_refused() -> None:
    crowd = trace(*[Request(0.0, 10, 50)] * 20)
    run = play(1, crowd, fleet(max_queued_requests=4))
    assert (run.completed, run.refusals) == (12, (Refused(Refusal.QUEUE_FULL, 8, 4),))
    assert sum(wait == 0 for wait in run.queue_waits_s) == 8
    assert max(run.queue_waits_s) == pytest.approx(5, abs=0.2)
    too_long = play(1, trace(Request(0.0, 100, 5)), fleet(max_model_len=100))
    assert too_long.refusals == (Refused(Refusal.BEYOND_MODEL_LEN, 1, 100),)
    assert too_long.first_tokens_s == (None,)
    for window in (None, 17_000):
        too_large = play(1, trace(Request(0.0, 16_000, 5)), fleet(max_model_len=window))
        assert too_large.refusals == (Refused(Refusal.BEYOND_KV_CACHE, 1, 16_000),)


def test_a_fixed_number_and_a_recommendation_are_played_too() -> None:
    load = trace(*steady(2.8, 120))
    assert numbers(play(3, load, fleet())) == [3]
    assert {moment.reason for moment in timeline(3, load, fleet())} == {"Start"}
    recommend = Policy(
        mode=Mode.RECOMMEND, min_replicas=1, max_replicas=6, in_flight_target=4, max_num_seqs=8, lookahead_s=0
    )
    assert numbers(play(recommend, load, fleet(max_num_seqs=64)))[-1] == 4


def test_first_tokens_that_take_too_long_ask_for_pods() -> None:
    policy = Policy(min_replicas=1, max_replicas=6, ttft_target_s=0.5, max_num_seqs=8, lookahead_s=0)
    run = play(policy, trace(*steady(3, 120)), fleet())
    assert max(numbers(run)) > 1


def test_more_pods_than_the_least_may_be_there_at_the_beginning() -> None:
    model = fleet()
    begun = type(model)(engine=model.engine, initial_replicas=3)
    assert timeline(POLICY, trace(*steady(0.1, 60)), begun)[0][1:3] == (3, 3)


def test_starts_lie_between_their_quantiles() -> None:
    model = fleet()
    slow = type(model)(engine=model.engine, start_p50_s=10, start_p95_s=40)
    load = trace(*steady(2.8, 120))
    median, late = (timeline(POLICY, load, slow, lambda share=share: share) for share in (0.5, 0.95))  # type: ignore[misc]
    asked_s = next(moment.t for moment in median if moment.desired > 1)
    first = [next(moment.t for moment in run if moment.replicas > 1) for run in (median, late)]
    assert first == [pytest.approx(asked_s + 10, abs=0.01), pytest.approx(asked_s + 40, abs=0.01)]
    at_once = type(model)(engine=model.engine, start_p50_s=0, start_p95_s=0)
    assert max(moment.replicas for moment in timeline(POLICY, load, at_once)) == 4


def test_random_balancing_is_worse_than_by_load() -> None:
    load = trace(*steady(3, 100))
    model = fleet(max_num_seqs=6)
    spread = type(model)(engine=model.engine, balancing=Balancing.RANDOM)
    even, uneven = play(3, load, model), play(3, load, spread, random.Random(1).random)
    assert sum(even.queue_waits_s) < sum(uneven.queue_waits_s)


_REQUESTS = st.lists(
    st.builds(Request, st.floats(0, 100), st.integers(1, 1200), st.integers(1, 120)), min_size=1, max_size=40
)


@settings(max_examples=12, deadline=None)
@given(_REQUESTS, st.integers(0, 5), st.integers(0, 3))
def test_every_request_ends_once_and_equal_chance_gives_equal_runs(
    requests: list[Request], queue: int, seed: int
) -> None:
    load = Trace(tuple(sorted(requests)))
    model = fleet(max_queued_requests=queue, kv_tokens=2000, start_s=3, drain_timeout_s=5)
    runs = [play(POLICY, load, model, random.Random(seed).random) for _ in range(2)]
    assert runs[0] == runs[1]
    run = runs[0]
    assert run.completed + run.refused + run.aborted == len(requests)
    assert all(1 <= moment.desired <= POLICY.max_replicas for moment in run.timeline)
    assert all(wait >= 0 for wait in run.queue_waits_s)
    answered = [first for first in run.first_tokens_s if first is not None]
    assert run.completed <= len(answered) <= run.completed + run.aborted
    assert math.isfinite(run.pod_seconds)
