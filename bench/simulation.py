"""How long a simulated day takes: `python -m bench.simulation`. One JSON line: seconds of CPU for a trace of requests.

Arrivals follow a sine over the day, prompts of 1,000 and answers of 250 tokens in the mean, exponentially spread.
"""

import argparse
import json
import math
import random
import time

from pagefleet_api import step_costs
from pagefleet_cli.simulation import EngineModel, FleetModel, Request, Trace, play, summarise
from pagefleet_operator.autoscaling import Policy

DAY_S = 86_400.0
PROMPT_TOKENS, ANSWER_TOKENS = 1000, 250
POLICY = Policy(min_replicas=1, max_replicas=8, waiting_target=4, kv_target=0.75, in_flight_target=16)


def day(requests: int, dice: random.Random) -> Trace:
    """A trace of so many requests; busiest in the first half."""
    found, when_s = [], 0.0
    for _ in range(requests):
        rate_per_s = requests / DAY_S * (1 + 0.8 * math.sin(2 * math.pi * when_s / DAY_S))
        when_s += dice.expovariate(rate_per_s)
        prompt, answer = (1 + int(dice.expovariate(1 / mean)) for mean in (PROMPT_TOKENS, ANSWER_TOKENS))
        found.append(Request(when_s, prompt, answer))
    return Trace(tuple(found))


def measure(requests: int) -> dict[str, object]:
    """One run of a day."""
    dice, costs = random.Random(1), step_costs.default()
    trace = day(requests, dice)
    fleet = FleetModel(engine=EngineModel(costs=costs, kv_tokens=costs.num_kv_blocks * 16))
    began_s = time.process_time()
    run = play(POLICY, trace, fleet, dice.random)
    summary = summarise("day", run, gpus_per_pod=1, gpu_price=None, slo_s=1.0)
    return {
        "bench": "simulation",
        "requests": requests,
        "completed": summary.completed,
        "cpu_s": round(time.process_time() - began_s, 2),
        "most_replicas": summary.most_replicas,
        "gpu_hours": round(summary.gpu_hours, 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.simulation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the day (default 1,000,000)")
    print(json.dumps(measure(parser.parse_args().requests)))


if __name__ == "__main__":
    main()
