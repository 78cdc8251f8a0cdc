"""What the benchmark of the autoscaler counts, and what it asks for."""

import pytest

from bench.autoscaler.hpa import with_period
from bench.autoscaler.rows import Round, against_hpa, failed, quantile, slo_lost_s, summary
from bench.autoscaler.subjects import Scaler, autoscaler, service
from e2e.answers import Answer
from e2e.cluster.arguments import controller_manager
from e2e.cluster.box import Box
from e2e.cluster.layout import CLUSTER
from pagefleet_api.service import InferenceService

ROUNDS = [Round(2.0, 6, 0.0, 20.0, 5, 100, 0), Round(3.0, 7, 30.0, 25.0, 6, 90, 1)]


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
    row = summary(Scaler.BUILTIN, ROUNDS)
    assert (row["step_to_replicas_s"]["p95"], row["overshoot"], row["slo_minutes_lost"]) == (3.0, 1, 0.5)
    assert (row["scale_downs"], row["requests"], row["cut"]) == (11, 190, 1)


def test_the_row_of_a_horizontal_pod_autoscaler_says_how_often_it_was_looked_at() -> None:
    assert summary(Scaler.HPA, ROUNDS)["hpa_sync_period_s"] == 15


def test_the_speed_up_is_of_medians_and_slo_minutes_are_by_the_round() -> None:
    hpas = [each._replace(up_s=up_s, slo_lost_s=60.0) for each, up_s in zip(ROUNDS, (10.0, 15.0), strict=True)]
    assert against_hpa(ROUNDS, hpas) == {
        "hpa_sync_period_s": 15,
        "median_step_to_replicas_s": {"builtin": 2.5, "hpa": 12.5},
        "times_faster": 5.0,
        "slo_minutes_lost_a_round": {"builtin": 0.25, "hpa": 1.0},
    }


@pytest.mark.parametrize(("scaler", "fails"), [(Scaler.BUILTIN, True), (Scaler.HPA, False)])
def test_only_our_own_autoscaler_is_judged(scaler: Scaler, fails: bool) -> None:
    assert failed([summary(scaler, ROUNDS)]) is fails
    assert not failed([summary(scaler, ROUNDS[:1])])


@pytest.mark.parametrize("scaler", Scaler)
def test_the_service_is_one_that_the_operator_takes(scaler: Scaler) -> None:
    meta = {"name": "stepped", "namespace": "n", "uid": "u"}
    parsed = InferenceService.parse({"metadata": meta, "spec": service(scaler)["spec"]})
    assert parsed.spec.decides is (scaler is Scaler.BUILTIN)


def test_both_autoscalers_are_asked_for_the_same() -> None:
    ours, its = service(Scaler.BUILTIN)["spec"]["autoscaling"], autoscaler()["spec"]
    same = ("minReplicas", "maxReplicas", "behavior")
    assert {name: ours[name] for name in same} == {name: its[name] for name in same}
    assert its["metrics"][0]["object"]["target"]["averageValue"] == ours["metrics"][0]["target"]["averageValue"]


def test_the_period_of_the_box_gives_way_to_the_default(tmp_path_factory: pytest.TempPathFactory) -> None:
    words = controller_manager(CLUSTER, Box.at(tmp_path_factory.getbasetemp()).folders)
    changed = with_period(words, 15)
    assert [word for word in changed if "autoscaler-sync" in word] == ["--horizontal-pod-autoscaler-sync-period=15s"]
    assert len(changed) == len(words)
