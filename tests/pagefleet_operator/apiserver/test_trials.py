"""A change on trial under the real Deployment controller: passed, taken back, and carried on by a new operator."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.pagefleet_operator.apiserver.api import Api, Json, eventually, never
from tests.pagefleet_operator.apiserver.conftest import Start
from tests.pagefleet_operator.apiserver.fleet import Fleet
from tests.pagefleet_operator.apiserver.operators import OperatorProcess, service

pytestmark = pytest.mark.apiserver

SLOW_S, FAST_S = 0.9, 0.045


class World:
    """One service on trial."""

    def __init__(self, api: Api, namespace: str, fleet: Fleet, start: Start) -> None:
        self.api, self.namespace, self.fleet, self._start = api, namespace, fleet, start
        self.operator: OperatorProcess = start().ready()

    def create(self, replicas: int, hold_s: int, **rules: Any) -> None:
        rollout = {"analysis": {"trafficPercent": 25, "holdSeconds": hold_s}, **rules}
        self.api.create("inferenceservices", service(self.namespace, replicas=replicas, rollout=rollout))
        eventually(lambda: len(self.fleet.serving()) == replicas, "all pods serve")
        eventually(lambda: self.deployment()["status"].get("updatedReplicas") == replicas, "the roll-out is over")

    def change(self, max_num_seqs: int) -> None:
        engine = {"maxNumSeqs": max_num_seqs}
        self.api.merge("inferenceservices", self.namespace, "s", {"spec": {"engine": engine}})

    def restart(self) -> None:
        """Another operator takes over, with nothing in its memory."""
        self.operator.stop()
        self.operator = self._start().ready()

    def deployment(self) -> Json:
        found = self.api.get("deployments", self.namespace, "s")
        assert found is not None
        return found

    def paused(self) -> bool:
        return bool(self.deployment()["spec"].get("paused"))

    def condition(self, kind: str) -> Json:
        live = self.api.get("inferenceservices", self.namespace, "s") or {}
        conditions = live.get("status", {}).get("conditions") or ()
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def seats(self) -> dict[str, str]:
        """`--max-num-seqs` of each pod: which template it has."""
        found = {}
        for pod in self.fleet.pods():
            args = pod["spec"]["containers"][0]["args"]
            found[str(pod["metadata"]["name"])] = str(args[args.index("--max-num-seqs") + 1])
        return found

    def templates(self) -> list[str]:
        return sorted(self.seats().values())

    def answer(self, requests: int, *, ttft_s: Callable[[str], float]) -> None:
        """So many requests on every pod, with the time to first token of its template."""
        for name, seats in self.seats().items():
            if name in self.fleet.engines:
                self.fleet.engines[name].answers.add(requests, ttft_s=ttft_s(seats))

    def events(self) -> list[str]:
        return [str(line["reason"]) for line in self.operator.events("event")]


def test_a_change_that_answers_as_well_takes_over(api: Api, namespace: str, start: Start) -> None:
    with Fleet(api, namespace) as fleet:
        world = World(api, namespace, fleet, start)
        world.create(3, hold_s=3)
        world.answer(500, ttft_s=lambda _: SLOW_S)  # before the trial: counts for nothing
        old = set(fleet.serving())
        world.change(9)
        eventually(world.paused, "the Deployment is held while both are compared")
        assert world.templates() == ["8", "8", "8", "9"], "no old pod goes before the comparison is over"
        assert old < set(fleet.serving())
        eventually(lambda: world.condition("Reconciling").get("reason") == "OnTrial", "the status tells")

        def passed() -> bool:
            world.answer(20, ttft_s=lambda _: FAST_S)
            return not world.paused()

        eventually(passed, "it passed")
        eventually(lambda: world.templates() == ["9", "9", "9"], "it took over")
        eventually(lambda: world.condition("Reconciling") == {}, "the roll-out is over")
        assert "minReadySeconds" not in world.deployment()["spec"]
        assert world.condition("Stalled") == {}
        assert [event for event in world.events() if event.startswith("Trial")] == ["TrialStarted", "TrialPassed"]


def test_a_slower_change_is_taken_back_and_stays_so_until_the_spec_changes_whoever_operates(
    api: Api, namespace: str, start: Start
) -> None:
    with Fleet(api, namespace, start_delay_s=1.0) as fleet:
        world = World(api, namespace, fleet, start)
        world.create(1, hold_s=60)
        old = fleet.serving()
        world.change(9)
        eventually(lambda: world.templates() == ["8", "9"], "the new pod starts beside the only one")
        world.restart()
        eventually(world.paused, "another operator goes on with the trial")
        world.restart()
        eventually(lambda: world.operator.metric("pagefleet_reconcile_seconds_count") >= 3, "another one looks")

        def taken_back() -> bool:
            world.answer(20, ttft_s=lambda seats: SLOW_S if seats == "9" else FAST_S)
            return world.condition("Stalled").get("reason") == "SLORegression"

        eventually(taken_back, "the regression is seen before the time is over", 20)
        words = world.condition("Stalled")["message"]
        assert "TTFT p95" in words and "against" in words
        assert world.condition("Ready")["status"] == "True"
        eventually(lambda: world.templates() == ["8"], "the new pod is gone")
        assert fleet.serving() == old, "the old one has never gone"
        world.restart()
        never(lambda: world.templates() != ["8"], "nothing moves after a restart", 1)
        writes = world.operator.writes()
        never(lambda: world.operator.writes() != writes, "nothing is written", 1)
        assert world.condition("Stalled")["reason"] == "SLORegression"
        world.change(10)
        eventually(world.paused, "the next change is tried anew")
        assert world.templates() == ["10", "8"]
        world.change(8)
        eventually(lambda: not world.paused() and world.templates() == ["8"], "a change that is taken back ends it")
        eventually(lambda: world.condition("Stalled") == {}, "nothing is stalled")
        assert fleet.serving() == old


def test_without_surge_a_trial_takes_the_place_of_an_old_pod_and_gives_it_back(
    api: Api, namespace: str, start: Start
) -> None:
    with Fleet(api, namespace) as fleet:
        world = World(api, namespace, fleet, start)
        world.create(3, hold_s=60, maxSurge=0)
        world.change(9)
        eventually(world.paused, "the Deployment is held")
        assert world.templates() == ["8", "8", "9"]

        def taken_back() -> bool:
            world.answer(20, ttft_s=lambda seats: SLOW_S if seats == "9" else FAST_S)
            return world.condition("Stalled").get("reason") == "SLORegression"

        eventually(taken_back, "the regression is seen", 20)
        eventually(lambda: world.templates() == ["8", "8", "8"], "the earlier template has all pods again")


def test_new_pods_that_are_not_ready_in_time_are_taken_back(api: Api, namespace: str, start: Start) -> None:
    with Fleet(api, namespace) as fleet:
        world = World(api, namespace, fleet, start)
        world.create(2, hold_s=60, progressDeadlineSeconds=2)
        old = fleet.serving()
        fleet.start_delay_s = 600
        world.change(9)
        eventually(lambda: len(world.templates()) == 3, "a new pod starts")
        eventually(lambda: world.condition("Stalled").get("reason") == "ProgressDeadlineExceeded", "it takes too long")
        eventually(lambda: world.templates() == ["8", "8"], "it is gone")
        assert fleet.serving() == old
        api.merge("inferenceservices", namespace, "s", {"spec": {"rollout": {"analysis": None}}})
        eventually(lambda: world.templates() == ["8", "8", "9"], "without an analysis it is rolled out all the same")
        eventually(
            lambda: world.condition("Stalled").get("message", "").endswith("has timed out progressing."), "stalls"
        )
        assert fleet.serving() == old, "and the earlier pods serve on"
