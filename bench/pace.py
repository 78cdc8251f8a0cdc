"""What goals for the time between two tokens give and cost, in virtual time; prints one JSON line for each.

    python bench/pace.py

The real scheduler plans steps for a closed loop of clients (each asks again 3 ms after its answer has ended), and a
step takes what `--device paced` says that it takes on an H200 with an 8B model. Nothing is computed and nobody waits,
so the figures show how goals compare, not what a GPU gives.
"""

import heapq
import json
import sys
from dataclasses import dataclass, field

from pagefleet_engine.core import paced
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.scheduler.pace import Pace, Work
from pagefleet_engine.steps import Sampling, SequenceResult, StepPlan
from pagefleet_engine.wire import Submit, TokenEvent

PROMPT_TOKENS, ANSWER_TOKENS = 1024, 128
ROUNDS = 4
CLIENTS = (64, 256)
GOALS_MS = (None, 100, 50, 40, 30, 20)
CLIENT_S = 0.003
TURN_S = 0.0005


@dataclass
class Crowd:
    """A closed loop of clients, and what they see."""

    clients: int
    coming: list[tuple[float, int]] = field(default_factory=list)
    asked_at_s: dict[int, float] = field(default_factory=dict)
    told_at_s: dict[int, float] = field(default_factory=dict)
    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)

    def ask(self, at_s: float) -> None:
        """One request more, while there are any."""
        number = len(self.asked_at_s)
        if number < ROUNDS * self.clients:
            self.asked_at_s[number] = at_s
            heapq.heappush(self.coming, (at_s, number))

    def arrived(self, now_s: float) -> list[Submit]:
        """Requests that have come by now."""
        requests = []
        while self.coming and self.coming[0][0] <= now_s:
            _, number = heapq.heappop(self.coming)
            requests.append(
                Submit(
                    request_id=number, prompt_token_ids=(1,) * PROMPT_TOKENS, max_tokens=ANSWER_TOKENS,
                    sampling=Sampling(seed=0),
                )
            )  # fmt: skip
        return requests

    def hear(self, event: TokenEvent, now_s: float) -> None:
        """Take in what a client is told."""
        number = event.request_id
        if event.token_id is None:
            return
        if number in self.told_at_s:
            self.between_s.append(now_s - self.told_at_s[number])
        else:
            self.first_s.append(now_s - self.asked_at_s[number])
        self.told_at_s[number] = now_s
        if event.finish_reason is not None:
            self.ask(now_s + CLIENT_S)


def played(clients: int, goal_ms: int | None) -> dict[str, object]:
    """One closed loop."""
    costs, crowd = paced.read_costs(None), Crowd(clients)
    pace = None if goal_ms is None else Pace(goal_ms / 1000)
    scheduler = Scheduler(Capacity(131_072, costs.num_kv_blocks, 128_000), 256, 8192, prefix_cache=False, pace=pace)
    for _ in range(clients):
        crowd.ask(0.0)
    now_s = over_s = ended_s = 0.0
    flight: tuple[StepPlan, float, float] | None = None
    while crowd.coming or scheduler.has_work:
        launched: list[tuple[StepPlan, float, float]] = [] if flight is None else [flight]
        while len(launched) < 2:
            now_s += TURN_S
            for request in crowd.arrived(now_s):
                scheduler.submit(request)
            plan = scheduler.schedule()
            if plan is None:
                break
            begin_s = max(over_s, now_s)
            over_s = begin_s + costs.step_s(*Work.of(plan))
            launched.append((plan, begin_s, over_s))
        if not launched:
            now_s = max(now_s, crowd.coming[0][0])
            continue
        plan, begin_s, end_s = launched[0]
        flight = launched[1] if len(launched) > 1 else None
        now_s = max(now_s, end_s)
        scheduler.complete(plan, _tokens(plan), end_s - max(begin_s, ended_s))
        ended_s = end_s
        for event in scheduler.drain_events():
            crowd.hear(event, now_s)
    return _row(crowd, goal_ms, now_s)


def _tokens(plan: StepPlan) -> list[SequenceResult]:
    return [
        SequenceResult(sequence_id=step.sequence_id, token_id=7 if step.sample else None) for step in plan.sequences
    ]


def _row(crowd: Crowd, goal_ms: int | None, seconds: float) -> dict[str, object]:
    tokens = len(crowd.first_s) + len(crowd.between_s)
    if tokens != ROUNDS * crowd.clients * ANSWER_TOKENS:
        raise SystemExit(f"{tokens} tokens came, which is not what was asked for")
    first, between = sorted(crowd.first_s), sorted(crowd.between_s)
    return {
        "bench": "pace",
        "clients": crowd.clients,
        "requests": ROUNDS * crowd.clients,
        "prompt_tokens": PROMPT_TOKENS,
        "answer_tokens": ANSWER_TOKENS,
        "itl_goal_ms": goal_ms,
        "tokens_per_s": round(tokens / seconds),
        **{f"ttft_p{rank}_ms": round(1000 * first[len(first) * rank // 100], 1) for rank in (50, 99)},
        **{f"itl_p{rank}_ms": round(1000 * between[len(between) * rank // 100], 1) for rank in (50, 99)},
    }


def main() -> None:
    """Play and print."""
    for clients in CLIENTS:
        for goal_ms in GOALS_MS:
            json.dump(played(clients, goal_ms), sys.stdout)
            print(flush=True)


if __name__ == "__main__":
    main()
