"""The same series, shown to a real HorizontalPodAutoscaler (recorded by the package `hpa`) and to our function."""

import json
from typing import Any

import pytest

from pagefleet_api.service import InferenceService
from pagefleet_operator.autoscaling import Fleet, Memory, PodLoad, Policy, decide
from tests.pagefleet_operator.autoscaling.build import SILENT, UNPLACED, at, load
from tests.pagefleet_operator.autoscaling.hpa.rehearsal import PENDING, Seen
from tests.pagefleet_operator.autoscaling.hpa.scenarios import KV, SCENARIOS, TIMELINES, Scenario

RECORDED: dict[str, list[tuple[float, int, list[Seen]]]] = json.loads(TIMELINES.read_text())


def policy(scenario: Scenario) -> Policy:
    """The scenario's, as our resource says it; with a queue that has room for any load."""
    engine = {"maxNumSeqs": 60_000, "maxQueuedRequests": 1_000_000}
    spec: dict[str, Any] = {"model": {"uri": "pkg://m"}, "engine": engine, "autoscaling": scenario.autoscaling()}
    made = Policy.of(InferenceService.parse({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": spec}))
    assert made is not None
    return made


def pod(scenario: Scenario, seen: Seen) -> PodLoad:
    """What was known of a pod, as our engines say it."""
    if isinstance(seen, str):
        return UNPLACED if seen == PENDING else SILENT
    said = load(kv=seen / 1000) if scenario.metric == KV else load(running=seen // 1000)
    return PodLoad("pod", True, True, said, 0.5)


def replayed(scenario: Scenario) -> list[int]:
    """Our number after each question that the real one asked."""
    ours, numbers = policy(scenario), []
    memory: Memory | None = None
    for now_s, replicas, seen in RECORDED[scenario.name]:
        outcome = decide(ours, Fleet(replicas, tuple(pod(scenario, one) for one in seen)), memory, at(now_s))
        memory = outcome.memory
        numbers.append(outcome.desired)
    return numbers


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_our_number_is_the_real_ones_within_one_period(scenario: Scenario) -> None:
    real = [replicas for _, replicas, _ in RECORDED[scenario.name]][1:]
    ours = replayed(scenario)[: len(real)]
    off = [
        (RECORDED[scenario.name][index][0], number, near)
        for index, number in enumerate(ours)
        if number not in (near := real[max(index - 1, 0) : index + 2])
    ]
    assert off == [], f"real {real}, ours {ours}"


def test_at_least_thirty_scenarios_of_at_least_twenty_periods_are_recorded() -> None:
    assert len([frames for frames in RECORDED.values() if len(frames) >= 20]) >= 30
