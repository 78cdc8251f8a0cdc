"""What the benchmark of the autoscaler counts."""

from bench.autoscaler import Round, autoscaled, quantile, slo_lost_s, summary
from e2e.answers import Answer
from pagefleet_api.service import InferenceService


def answer(started_s: float, took_s: float) -> Answer:
    return Answer(number=0, asked_tokens=1, started_s=started_s, ended_s=started_s + took_s)


def test_a_window_counts_when_one_answer_of_twenty_was_slow() -> None:
    fast = [answer(0.1 * number, 1.0) for number in range(19)]
    assert slo_lost_s([*fast, answer(4, 9.0)], slo_s=2.0) == 0.0
    assert slo_lost_s([*fast[1:], answer(4, 9.0), answer(4, 9.0)], slo_s=2.0) == 5.0
    assert slo_lost_s([answer(1, 3.0), answer(6, 3.0), answer(11, 1.0)], slo_s=2.0) == 10.0


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.25, 0.5, 0.95)] == [1.0, 1.0, 2.0, 4.0]


def test_the_row_says_the_worst() -> None:
    rounds = [Round(2.0, 6, 0.0, 20.0, 5, 100, 0), Round(3.0, 7, 30.0, 25.0, 6, 90, 1)]
    row = summary(rounds)
    assert (row["step_to_replicas_s"]["p95"], row["overshoot"], row["slo_minutes_lost"]) == (3.0, 1, 0.5)
    assert (row["scale_downs"], row["requests"], row["cut"]) == (11, 190, 1)


def test_the_service_is_one_that_the_operator_takes() -> None:
    meta = {"name": "stepped", "namespace": "n", "uid": "u"}
    InferenceService.parse({"metadata": meta, "spec": autoscaled()["spec"]})
