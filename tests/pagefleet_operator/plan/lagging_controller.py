"""A model of the Deployment controller, late as the real one is, on nodes with little room."""

import random
from dataclasses import dataclass
from datetime import timedelta

from pagefleet_api.reasons import Reason
from pagefleet_api.service import Rollout
from pagefleet_operator.facts.observed import DeploymentView, Observed, Pod, PodProblem
from pagefleet_operator.plan.rollout import RollingUpdate, rolling_update
from tests.pagefleet_operator.plan.build import START, at


@dataclass
class Replica:
    """One pod of a template."""

    name: str
    template: int
    created_s: float
    placed: bool = False

    def seen(self) -> Pod:
        """As the watch cache shows it."""
        created = START + timedelta(seconds=self.created_s)
        problem = None if self.placed else PodProblem(Reason.UNSCHEDULABLE, "no room", created)
        return Pod(
            name=self.name,
            uid=self.name,
            created=created,
            ready=self.placed,
            template_hash=str(self.template),
            problem=problem,
        )


class Rolling:
    """A Deployment whose strategy is `Auto`; the test changes its number and its template."""

    def __init__(self, seed: int, *, replicas: int, room: int, live: tuple[str, str]) -> None:
        self.dice = random.Random(seed)
        self.replicas, self.room, self.template = replicas, room, 0
        self.surge, self.unavailable = live
        self.generation, self.observed_generation, self.total, self.updated = 1, 0, 0, 0
        self.now_s, self.made, self.strategy_writes = 0.0, 0, 0
        self.pods: list[Replica] = []

    def change(self, *, replicas: int | None = None, new_template: bool = False) -> None:
        """The user's write."""
        self.replicas = self.replicas if replicas is None else replicas
        self.template += new_template
        self.generation += 1

    def step(self) -> None:
        """A second to half a minute: the scheduler, perhaps the controller, and some passes of the operator."""
        self.now_s += self.dice.choice([1.0, 5.0, 30.0])
        for pod in self.pods:
            pod.placed = pod.placed or sum(other.placed for other in self.pods) < self.room
        if self.dice.random() < 0.5:
            self._control()
        for _ in range(self.dice.randint(1, 3)):
            self._operate()

    @property
    def rolled_out(self) -> bool:
        """Only pods of the latest template are there, and the controller knows."""
        return self.observed_generation == self.generation and self.total == self.updated

    def _control(self) -> None:
        """`rolloutRolling`: the new ReplicaSet up within the surge, then broken old pods, then old ones, down."""
        new = self._of(latest=True)
        missing = min(self.replicas - len(new), self.replicas + int(self.surge) - len(self.pods))
        for _ in range(max(missing, 0)):
            self.made += 1
            self.pods.append(Replica(f"p{self.made}", self.template, self.now_s))
        for pod in new[self.replicas :]:
            self.pods.remove(pod)
        old = sorted(self._of(latest=False), key=lambda pod: pod.placed)
        spare = len(self.pods) - (self.replicas - int(self.unavailable))
        spare -= sum(not pod.placed for pod in self._of(latest=True))
        for pod in old[: max(spare, 0)]:
            self.pods.remove(pod)
        self.observed_generation = self.generation
        self.total, self.updated = len(self.pods), len(self._of(latest=True))

    def _operate(self) -> None:
        view = DeploymentView(
            name="d",
            generation=self.generation,
            observed_generation=self.observed_generation,
            replicas=self.replicas,
            total=self.total,
            updated=self.updated,
            max_surge=self.surge,
            max_unavailable=self.unavailable,
        )
        seen = Observed(view, tuple(pod.seen() for pod in self.pods))
        wanted = rolling_update(Rollout(), seen, at(self.now_s))
        if (str(wanted.max_surge), str(wanted.max_unavailable)) != (self.surge, self.unavailable):
            self._write(wanted)

    def _write(self, wanted: RollingUpdate) -> None:
        self.surge, self.unavailable = str(wanted.max_surge), str(wanted.max_unavailable)
        self.generation += 1
        self.strategy_writes += 1

    def _of(self, *, latest: bool) -> list[Replica]:
        return [pod for pod in self.pods if (pod.template == self.template) is latest]
