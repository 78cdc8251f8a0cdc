"""A model of clients, engine seats and slow starts around the real decision, in steps of simulated time."""

import random
from dataclasses import dataclass, field

from pagefleet_api.load import EngineState, Load
from pagefleet_operator.autoscaling import Fleet, Memory, PodLoad, Policy, decide
from tests.pagefleet_operator.autoscaling.build import at

STEP_S = 0.5
SAMPLE_S = 2.0
BLOCKS = 1000


@dataclass
class Engine:
    """Seats and a queue; a request leaves after its service time, spent in a seat."""

    seats: int
    ready_at_s: float
    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)

    def step(self) -> int:
        """Requests that finished in this step."""
        self.running = [left - STEP_S for left in self.running]
        done = sum(left <= 0 for left in self.running)
        self.running = [left for left in self.running if left > 0]
        self.seat()
        return done

    def seat(self) -> None:
        """Fill the free seats from the queue."""
        free = max(self.seats - len(self.running), 0)
        self.running += self.waiting[:free]
        self.waiting = self.waiting[free:]

    def load(self, ready: bool) -> Load:
        return Load(
            state=EngineState.READY if ready else EngineState.STARTING,
            running=len(self.running),
            waiting=len(self.waiting),
            max_num_seqs=self.seats,
            block_size=16,
            blocks_used=round(BLOCKS * 0.6 * len(self.running) / self.seats),
            blocks_total=BLOCKS,
            queued_prompt_tokens=0,
            seconds_since_last_step=0,
        )


@dataclass
class World:
    """`clients` keep one request each in flight, on a random ready pod; new pods take `cold_start_s`."""

    policy: Policy
    clients: int
    service_s: float
    cold_start_s: float
    seed: int
    arrivals_per_s: float = 0.0
    now_s: float = 0.0
    memory: Memory | None = None
    engines: list[Engine] = field(default_factory=list)
    leaving: list[Engine] = field(default_factory=list)
    trail: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.engines = [Engine(self.policy.max_num_seqs, 0.0) for _ in range(self.policy.min_replicas)]
        self.idle_clients = self.clients

    def run(self, seconds: float) -> None:
        """Let time pass, with a sample and a decision every two seconds."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self._step()
            if self.now_s % SAMPLE_S == 0:
                self._decide()

    def stop_load(self) -> None:
        """Clients send nothing more once their request is answered."""
        self.clients = 0
        self.idle_clients = 0

    def numbers(self, since_s: float = 0.0) -> list[int]:
        """Each number that was wanted since then, repeats left out."""
        kept: list[int] = []
        for when_s, number in self.trail:
            if when_s >= since_s and (not kept or kept[-1] != number):
                kept.append(number)
        return kept

    def _step(self) -> None:
        self.now_s += STEP_S
        done = sum(engine.step() for engine in [*self.engines, *self.leaving])
        self.leaving = [engine for engine in self.leaving if engine.running or engine.waiting]
        self.idle_clients = min(self.idle_clients + done, self.clients)
        ready = [engine for engine in self.engines if engine.ready_at_s <= self.now_s]
        fresh = sum(self.dice.random() < self.arrivals_per_s * STEP_S / 8 for _ in range(8))
        for _ in range((self.idle_clients if ready else 0) + fresh):
            chosen = self.dice.choice(ready)
            chosen.waiting.append(self.service_s * self.dice.uniform(0.3, 1.7))
            chosen.seat()
        self.idle_clients = 0 if ready else self.idle_clients

    def _decide(self) -> None:
        pods = []
        for engine in self.engines:
            ready = engine.ready_at_s <= self.now_s
            pods.append(PodLoad("pod", ready, True, engine.load(ready), self.dice.uniform(0, 2)))
        fleet = Fleet(len(self.engines), tuple(pods), cold_start_s=self.cold_start_s)
        outcome = decide(self.policy, fleet, self.memory, at(self.now_s))
        self.memory = outcome.memory
        self.trail.append((self.now_s, outcome.desired))
        while len(self.engines) < outcome.desired:
            self.engines.append(Engine(self.policy.max_num_seqs, self.now_s + self.cold_start_s))
        self.engines.sort(key=lambda engine: (engine.ready_at_s > self.now_s, -len(engine.running)))
        self.leaving += self.engines[outcome.desired :]
        self.engines = self.engines[: outcome.desired]
