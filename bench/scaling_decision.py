"""`python -m bench.scaling_decision [--pods 100]`: milliseconds of one scaling decision; prints a JSON line."""

import argparse
import json
import math
import statistics
import time
from datetime import UTC, datetime, timedelta

from pagefleet_api.load import EngineState, LoadReport
from pagefleet_operator.autoscaling import Fleet, Memory, PodLoad, Policy, decide, next_steps
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.observed import Now

ROUNDS = 300
_BUCKETS = (*(0.001 * 2**power for power in range(20)), math.inf)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    pods = parser.parse_args().pods
    plain = Policy(min_replicas=1, max_replicas=2 * pods, waiting_target=4, kv_target=0.75, max_num_seqs=16)
    timed = Policy(min_replicas=1, max_replicas=2 * pods, waiting_target=4, ttft_target_s=0.5, max_num_seqs=16)
    rows = {"decision": _measure(plain, _fleet(pods, None)), "with_latencies": _measure(timed, _fleet(pods, _times()))}
    print(json.dumps({"bench": "scaling_decision", "pods": pods, "rounds": ROUNDS, **rows}))


def _measure(policy: Policy, fleet: Fleet) -> dict[str, float]:
    memory: Memory | None = None
    took_ms, asked_ms = [], []
    for number in range(ROUNDS):
        now = Now(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=2 * number), 2.0 * number)
        began_s = time.perf_counter()
        memory = decide(policy, fleet, memory, now).memory
        decided_s = time.perf_counter()
        next_steps(policy, fleet, memory, now)
        took_ms.append((decided_s - began_s) * 1000)
        asked_ms.append((time.perf_counter() - decided_s) * 1000)
    return {
        "median_ms": round(statistics.median(took_ms), 3),
        "p95_ms": round(statistics.quantiles(took_ms, n=20)[-1], 3),
        "next_steps_median_ms": round(statistics.median(asked_ms), 3),
    }


def _fleet(pods: int, ttft: Histogram | None) -> Fleet:
    return Fleet(pods, tuple(PodLoad(f"pod-{n}", True, True, _load(n), 1.0, ttft=ttft) for n in range(pods)))


def _load(number: int) -> LoadReport:
    return LoadReport(
        state=EngineState.READY,
        running=8 + number % 4,
        waiting=number % 3,
        max_num_seqs=16,
        block_size=16,
        blocks_used=400,
        blocks_total=1000,
        queued_prompt_tokens=500,
        seconds_since_last_step=0.0,
    )


def _times() -> Histogram:
    return Histogram(_BUCKETS, tuple(float(50 * (count + 1)) for count in range(len(_BUCKETS))), 900.0)


if __name__ == "__main__":
    main()
