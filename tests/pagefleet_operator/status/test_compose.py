from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_api.status import Status
from pagefleet_operator.facts.observed import Observed, PodProblem
from pagefleet_operator.facts.starts import Phases, StartLog
from pagefleet_operator.status import Invalid, crash_words, crashed_status, invalid_status
from tests.pagefleet_operator.plan.build import drained, observed, pod
from tests.pagefleet_operator.status.build import at, condition, fleet, outcome, ready, service, status


def test_counts_leave_out_what_is_on_its_way_out() -> None:
    starting = pod("b", ready=False)
    found = status(observed(pod("a"), starting, drained("c"), pod("d", terminating=True)), 3)
    assert (found.replicas, found.ready_replicas, found.draining_replicas, found.updated_replicas) == (2, 1, 1, 4)
    assert found.ready == "1/3"
    assert found.observed_generation == 3
    assert found.url == "http://llama.team.svc/v1"
    assert found.selector == "app.kubernetes.io/managed-by=pagefleet,pagefleet.io/service=llama"
    assert (found.targets, found.autoscaling) == (None, None)


def test_a_service_without_pods_has_a_status() -> None:
    found = status(Observed(), 1)
    assert (found.replicas, found.updated_replicas, found.ready) == (0, 0, "0/1")
    assert Status.model_validate(found.wire()) == found


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({}, 0),
        ({"engine": {"device": "cuda"}}, 1),
        ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, 2),
        (
            {
                "engine": {"runtime": "vllm", "image": "v", "parallelism": {"tensor": 8, "pipeline": 2}},
                "model": {"uri": "file:///m"},
            },
            16,
        ),
    ],
)
def test_a_replica_s_gpus_are_told_whoever_names_them(spec: dict[str, Any], gpus: int) -> None:
    assert status(Observed(), 1, of=service(**spec)).gpus == gpus


def test_words_of_any_length_make_a_status() -> None:
    long = f"begins {'x' * 100_000} ends"
    seen = observed(pod("a", ready=False, problem=PodProblem(Reason.CRASH_LOOP, long)))
    told = [
        status(seen, 1),
        status(observed(pod("a")), 1, warnings=[long]),
        status(Observed(), 1, apply_error=long),
        invalid_status(Invalid(long, 1), Status(), Status(), at(0)),
        crashed_status(long, 1, Status(), at(0)),
    ]
    for found in told:
        message = found.conditions[0].message
        assert len(message) == 32_768 and "…" in message
        assert Status.model_validate(found.wire()) == found


def test_a_long_name_is_cut_in_the_url_as_in_its_service() -> None:
    long = service().model_copy(update={"name": "l" * 80})
    found = status(Observed(), 1, of=long)
    assert found.url == f"http://{long.child_name}.team.svc/v1"


def test_cold_starts_are_told_in_whole_seconds_and_outlive_the_operator() -> None:
    assert status(Observed(), 1).cold_start is None
    log = StartLog((Phases(0.6, 2.4, 3.5, 4.5), Phases(0.4, 9.6, None, 20.0)))
    told = status(Observed(), 1, starts=log)
    assert told.cold_start is not None
    assert told.cold_start.model_dump(exclude={"pools"}) == {
        "starts": 2,
        "p50_seconds": 11,
        "p95_seconds": 30,
        "phases": {"schedule_seconds": 0, "image_seconds": 2, "weights_seconds": 4, "warm_up_seconds": 4},
    }
    assert (told.cold_start.pools, told.cold_start.expected.p50_seconds) == ((), 11)
    assert status(Observed(), 1, starts=StartLog(), previous=told).cold_start == told.cold_start


def test_cold_starts_are_told_by_pool_the_latest_first() -> None:
    log = StartLog((Phases(0, 0, None, 90, "spot"), Phases(0, 0, None, 80, "spot"), Phases(0, 0, None, 20, "h200")))
    told = status(Observed(), 1, starts=log).cold_start
    assert told is not None
    assert [(each.pool, each.starts, each.p50_seconds, each.p95_seconds) for each in told.pools] == [
        ("h200", 1, 20, 20),
        ("spot", 2, 80, 90),
    ]
    assert (told.starts, told.p50_seconds, told.expected.p50_seconds) == (3, 80, 20)


def test_a_change_is_kept_in_the_history_with_its_time() -> None:
    up = status(observed(pod("a")), 3, scaled=outcome(fleet(ready(12, 8))), now=at(0))
    assert up.autoscaling is not None
    assert up.targets == "queue 12/4, kv 0/75 %"
    assert up.autoscaling.desired_replicas == 3
    assert up.autoscaling.last_scale_time == "2026-01-01T00:00:00Z"
    assert up.autoscaling.history == (up.autoscaling.last_decision,)
    calm = outcome(fleet(ready(0, 7), ready(0, 7), ready(0, 6)), now_s=60)
    same = status(observed(pod("a")), 3, scaled=calm, previous=up, now=at(60))
    assert same.autoscaling is not None
    assert same.autoscaling.last_scale_time == "2026-01-01T00:00:00Z"
    assert same.autoscaling.history == up.autoscaling.history
    assert same.autoscaling.last_decision == calm.decision


def test_the_history_keeps_the_latest_ten() -> None:
    found = Status()
    for step in range(12):
        pods = fleet(ready(12, 8)) if step % 2 == 0 else fleet(ready(), ready(), ready())
        found = status(Observed(), 1, scaled=outcome(pods, now_s=step), previous=found, now=at(step))
    assert found.autoscaling is not None
    assert [decision.time[-3:-1] for decision in found.autoscaling.history] == [f"{n:02}" for n in range(11, 1, -1)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("spec"), "KeyError: 'spec'"),
        (ValueError(""), "ValueError"),
        (ValueError("one\ntwo"), "ValueError: one"),
        (TypeError("<object at 0x7f3a2b4c> is none"), "TypeError: <object at …> is none"),
        (ValueError("Authorization: Bearer abc.def failed"), "ValueError: … failed"),
        (ValueError("https://me:pass@host/x and hf_abc123"), "ValueError: https://…host/x and …"),
        (ValueError("HF_TOKEN='x y'"), "ValueError: …"),
        (ValueError("eyJ" + "x" * 60), "ValueError: …"),
        (ValueError("word " * 100), f"ValueError: {'word ' * 57}wor…"),
    ],
)
def test_an_error_is_told_without_secrets_and_the_same_in_every_process(error: Exception, words: str) -> None:
    found = crash_words(error)
    assert found == words


def test_a_crash_leaves_all_that_was_said_and_says_that_it_is_ours() -> None:
    before = status(observed(pod("a")), 2)
    found = crashed_status("KeyError: 'x'", 4, before, at(9))
    kinds = [one.type for one in found.conditions]
    assert "Reconciling" in [one.type for one in before.conditions] and "Reconciling" not in kinds
    stalled = condition(found, "Stalled")
    assert stalled is not None and (stalled.status, stalled.reason) == ("True", "InternalError")
    assert "KeyError: 'x'" in stalled.message
    assert condition(found, "Ready") == condition(before, "Ready")
    assert found.observed_generation == 4
    assert crashed_status("KeyError: 'x'", 4, found, at(99)) == found, "the same crash is no news"
    first = condition(crashed_status("KeyError: 'x'", 1, Status(), at(9)), "Ready")
    assert first is not None and (first.status, first.reason) == ("Unknown", "InternalError")
