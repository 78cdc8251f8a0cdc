"""A model of engines and of the ReplicaSet controller, around the real drain plan."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from pagefleet_api.load import EngineState
from pagefleet_api.reasons import Reason
from pagefleet_operator.facts.observed import (
    LEAVING_COST,
    DeploymentView,
    Observed,
    Pod,
    PodProblem,
    Sample,
    parse_time,
)
from pagefleet_operator.plan.replicas import Drain, ReplicaPlan, plan_replicas
from tests.pagefleet_operator.plan.build import START, at, load

ENDPOINT_LAG_S = 1
SAMPLE_S = 2
TIMEOUT_S = 1000.0


@dataclass
class Engine:
    """One pod with what runs in it."""

    name: str
    created_s: int
    ready_at_s: int
    serving: bool = True
    told_to_drain: bool = False
    drain_started: str | None = None
    deletion_cost: int | None = None
    out_since_s: int | None = None
    in_flight: int = 0
    crashed: bool = False
    restarts: int = 0

    def up(self, now_s: int) -> bool:
        """Its engine answers."""
        return now_s >= self.ready_at_s

    def ready(self, now_s: int) -> bool:
        """Its readiness probe passes."""
        return self.up(now_s) and not self.told_to_drain

    def takes_requests(self, now_s: int) -> bool:
        """Endpoints follow the label with a lag."""
        lagging = self.out_since_s is not None and now_s - self.out_since_s <= ENDPOINT_LAG_S
        return (self.ready(now_s) and self.serving) or (self.up(now_s) and lagging)

    def seen(self, now_s: int) -> Pod:
        """As the watch cache shows it."""
        problem = PodProblem(Reason.CRASH_LOOP, "exit code 1") if self.crashed else None
        return Pod(
            name=self.name,
            uid=self.name,
            created=START + timedelta(seconds=self.created_s),
            ready=self.ready(now_s),
            serving=self.serving,
            drain_started=parse_time(self.drain_started),
            started=self.up(now_s) or self.crashed,
            running=self.up(now_s),
            restarts=self.restarts,
            deletion_cost=self.deletion_cost,
            problem=None if self.up(now_s) else problem,
        )


class Cluster:
    """Random requests, crashes and lost calls; the wanted number is the test's."""

    def __init__(self, seed: int, wanted: int) -> None:
        self.dice = random.Random(seed)
        self.now_s, self.made, self.left_to_sigterm = 0, 0, 0
        self.wanted = self.replicas = wanted
        self.engines: list[Engine] = []
        self.samples: dict[str, Sample] = {}
        self.arrivals_per_s = 1.0
        self.trouble = True
        self.cut_share = 0.0
        """Share of the passes in which the operator is killed between two writes."""
        self.seen = Observed()

    def step(self) -> ReplicaPlan:
        """One second: requests come and go, the ReplicaSet acts or not, the operator makes one pass."""
        self.now_s += 1
        self._requests()
        if self.trouble and self.dice.random() < 0.02:
            self._crash()
        if self.dice.random() < 0.7:
            self._replica_set()
        if self.now_s % SAMPLE_S == 0:
            self._scrape()
        return self._operate()

    def lose_samples(self) -> None:
        """The operator starts anew."""
        self.samples = {}

    def _requests(self) -> None:
        for engine in self.engines:
            engine.in_flight -= sum(self.dice.random() < 0.1 for _ in range(engine.in_flight))
        targets = [engine for engine in self.engines if engine.takes_requests(self.now_s)]
        if targets and self.dice.random() < self.arrivals_per_s:
            self.dice.choice(targets).in_flight += self.dice.randint(0, 3)

    def _crash(self) -> None:
        if self.engines:
            engine = self.dice.choice(self.engines)
            engine.in_flight, engine.told_to_drain, engine.crashed = 0, False, True
            engine.restarts += 1
            engine.ready_at_s = self.now_s + self.dice.randint(5, 50)

    def _replica_set(self) -> None:
        for _ in range(self.replicas - len(self.engines)):
            self.made += 1
            slow_s = self.dice.randint(1, 40)
            self.engines.append(Engine(f"p{self.made}", self.now_s, self.now_s + slow_s))
        self.engines.sort(key=self._deleted_first)
        for engine in self.engines[: max(len(self.engines) - self.replicas, 0)]:
            self.left_to_sigterm += engine.in_flight
            self.engines.remove(engine)

    def _deleted_first(self, engine: Engine) -> tuple[bool, bool, int, int]:
        """`ActivePodsWithRanks`: pending, not ready, lower cost, younger."""
        pending = not engine.up(self.now_s) and not engine.crashed
        return not pending, engine.ready(self.now_s), engine.deletion_cost or 0, -engine.created_s

    def _scrape(self) -> None:
        for engine in self.engines:
            if engine.up(self.now_s) and not (self.trouble and self.dice.random() < 0.1):
                state = EngineState.DRAINING if engine.told_to_drain else EngineState.READY
                self.samples[engine.name] = Sample(
                    load(engine.in_flight, state), at(self.now_s).monotonic_s, engine.restarts
                )

    def _operate(self) -> ReplicaPlan:
        view = DeploymentView(name="d", replicas=self.replicas, total=len(self.engines), updated=len(self.engines))
        pods = tuple(engine.seen(self.now_s) for engine in self.engines)
        seen = Observed(view, pods, dict(self.samples))
        steps = plan_replicas(self.wanted, seen, at(self.now_s), drain_timeout_s=TIMEOUT_S)
        self.seen = seen
        acts = self._acts(steps)
        if self.trouble and self.dice.random() < self.cut_share:
            acts = acts[: self.dice.randint(0, len(acts))]
            self.lose_samples()
        for act in acts:
            act()
        return steps

    def _acts(self, steps: ReplicaPlan) -> list[Callable[[], None]]:
        """Each write and each call of a plan, in the order in which they are carried out."""
        by_name = {engine.name: engine for engine in self.engines}
        acts: list[Callable[[], None]] = []
        acts += [partial(self._put_back, by_name[order.pod.name]) for order in steps.undrain]
        acts += [partial(self._take_out, by_name[order.pod.name], order) for order in steps.drain]
        acts += [partial(setattr, by_name[over.pod.name], "deletion_cost", LEAVING_COST) for over in steps.release]
        acts += [partial(self._tell, by_name[order.pod.name], drain=False) for order in steps.undrain]
        acts += [partial(self._tell, by_name[order.pod.name], drain=True) for order in steps.drain]
        acts.append(partial(setattr, self, "replicas", steps.deployment_replicas))
        acts += [partial(self._tell, by_name[call.pod.name], drain=call.drain) for call in steps.tell]
        return acts

    def _put_back(self, engine: Engine) -> None:
        engine.serving, engine.drain_started, engine.deletion_cost, engine.out_since_s = True, None, None, None

    def _take_out(self, engine: Engine, order: Drain) -> None:
        engine.serving, engine.drain_started, engine.deletion_cost = False, order.started, order.deletion_cost
        engine.out_since_s = self.now_s

    def _tell(self, engine: Engine, *, drain: bool) -> None:
        if engine.up(self.now_s) and not (self.trouble and self.dice.random() < 0.3):
            engine.told_to_drain = drain
