"""Cost of one scheduling pass and of the block pool; prints one JSON line.

    python bench/scheduler.py

The scheduler runs between two steps of the model, so its time is lost to the GPU. CPU time of one thread:
median and 99th percentile over the steps, the least of a few rounds for admission and the pool; inputs are
in the line. A turn is the whole of the core's loop with lookahead and a runner that costs nothing.
"""

import json
import platform
import socket
import sys
from time import process_time_ns

from pagefleet_engine.core.channel import CoreChannel, encode_frame
from pagefleet_engine.core.loop import CoreLoop
from pagefleet_engine.kv.pool import BlockPool
from pagefleet_engine.runner.cuda.packing import Packer, Seats
from pagefleet_engine.scheduler.admission import Capacity
from pagefleet_engine.scheduler.batching import Scheduler
from pagefleet_engine.scheduler.pace import Pace
from pagefleet_engine.scheduler.policies import POLICIES
from pagefleet_engine.steps import Deferred, Progress, Sampling, SequenceResult, StepPlan, no_progress
from pagefleet_engine.wire import StepReport, Submit

RUNNING = 256
MANY_RUNNING = 512
WAITING = 1024
PROMPT_TOKENS = 1024
NUM_BLOCKS = 55_600
STEPS = 200
ROUNDS = 5


def results_for(plan: StepPlan) -> list[SequenceResult]:
    """A token for each sequence that asks for one."""
    return [
        SequenceResult(sequence_id=step.sequence_id, token_id=7 if step.sample else None) for step in plan.sequences
    ]


def decoding_scheduler(running: int) -> Scheduler:
    """A scheduler with `running` requests past their prefill."""
    scheduler = Scheduler(Capacity(32_768, NUM_BLOCKS, 50_000), running, 8192, pace=Pace(0.05))
    for request_id in range(running):
        prompt = tuple((request_id * 31 + position) % 50_000 for position in range(PROMPT_TOKENS))
        scheduler.submit(
            Submit(request_id=request_id, prompt_token_ids=prompt, max_tokens=30_000, sampling=Sampling(seed=0))
        )
    while (plan := scheduler.schedule()) is not None:
        scheduler.complete(plan, results_for(plan))
        if len(plan.sequences) == plan.batch_tokens == running:
            break
    scheduler.drain_events()
    return scheduler


def decode_costs(running: int) -> dict[str, float]:
    """Microseconds for each part of a pure decode step of so many sequences."""
    scheduler = decoding_scheduler(running)
    spent: dict[str, list[int]] = {"schedule": [], "complete": [], "deliver": []}
    for _ in range(STEPS):
        begin = process_time_ns()
        plan = scheduler.schedule()
        planned = process_time_ns()
        if plan is None or len(plan.sequences) != running:
            raise SystemExit("the batch is not full")
        results = results_for(plan)
        computed = process_time_ns()
        scheduler.complete(plan, results)
        completed = process_time_ns()
        encode_frame(StepReport(events=scheduler.drain_events()))
        delivered = process_time_ns()
        for name, duration in zip(spent, (planned - begin, completed - computed, delivered - completed), strict=True):
            spent[name].append(duration)
    return {
        f"{name}_{label}_us": round(sorted(times)[rank] / 1000, 1)
        for name, times in spent.items()
        for label, rank in (("p50", STEPS // 2), ("p99", STEPS * 99 // 100))
    }


def packing_us(running: int) -> float:
    """Microseconds to pack a step of so many decodes for a GPU (median)."""
    scheduler, packer = decoding_scheduler(running), Packer(Seats(running, NUM_BLOCKS), NUM_BLOCKS)
    times = []
    for _ in range(STEPS):
        plan = scheduler.schedule()
        if plan is None:
            raise SystemExit("the batch is empty")
        start = process_time_ns()
        packer.pack(plan.sequences, running)
        times.append(process_time_ns() - start)
        scheduler.complete(plan, results_for(plan))
        scheduler.drain_events()
    return sorted(times)[STEPS // 2] / 1000


def admitting_us(policy: str) -> float:
    """Microseconds to plan a step that gives a seat to one of many who wait, each with a tenant of its own (median)."""
    scheduler = Scheduler(Capacity(32_768, NUM_BLOCKS, 50_000), RUNNING, 8192, policy=POLICIES[policy])
    for request_id in range(RUNNING + WAITING):
        prompt = tuple((request_id * 31 + position) % 50_000 for position in range(64))
        scheduler.submit(
            Submit(
                request_id=request_id, prompt_token_ids=prompt, max_tokens=20 + request_id * 7 % 400,
                sampling=Sampling(seed=0), priority=request_id % 5, tenant=str(request_id),
            )
        )  # fmt: skip
    times: list[int] = []
    while len(times) < STEPS:
        start = process_time_ns()
        plan = scheduler.schedule()
        spent = process_time_ns() - start
        if plan is None:
            raise SystemExit("nobody waits any more")
        if plan.batch_tokens > len(plan.sequences):
            times.append(spent)
        scheduler.complete(plan, results_for(plan))
        scheduler.drain_events()
    return sorted(times)[STEPS // 2] / 1000


def admission_us() -> float:
    """Microseconds to submit and plan one fresh prompt of `PROMPT_TOKENS` tokens, hashing included."""
    prompt = tuple(range(PROMPT_TOKENS))
    times = []
    for _ in range(ROUNDS):
        scheduler = Scheduler(Capacity(32_768, NUM_BLOCKS, 50_000), RUNNING, 8192)
        request = Submit(request_id=0, prompt_token_ids=prompt, max_tokens=9, sampling=Sampling(seed=0))

        def submit_and_plan(scheduler: Scheduler = scheduler, request: Submit = request) -> None:
            scheduler.submit(request)
            scheduler.schedule()

        start = process_time_ns()
        submit_and_plan()
        times.append(process_time_ns() - start)
    return min(times) / 1000


class NullRunner:
    """A runner that costs nothing: it looks its answer up."""

    num_blocks = NUM_BLOCKS
    lookahead = True
    gpu = None

    def __init__(self) -> None:
        self._answers: list[SequenceResult] = []

    def launch(self, plan: StepPlan, progress: Progress = no_progress) -> Deferred:
        """Token 7 for all."""
        return Deferred(self._compute, plan)

    def idle_work(self) -> bool:
        """Nothing waits."""
        return False

    def _compute(self, plan: StepPlan, progress: Progress) -> list[SequenceResult]:
        if len(self._answers) != len(plan.sequences):
            self._answers = results_for(plan)
        return self._answers


def turn_us(running: int) -> float:
    """Microseconds of a whole turn of the core's loop, socket included, at `running` decodes (median)."""
    core, api = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    scheduler = decoding_scheduler(running)
    loop = CoreLoop(CoreChannel(core), scheduler, NullRunner())
    times = []
    for _ in range(STEPS):
        start = process_time_ns()
        loop.turn()
        times.append(process_time_ns() - start)
        api.recv(1 << 20)
    core.close()
    api.close()
    return sorted(times)[STEPS // 2] / 1000


def pool_ns() -> dict[str, float]:
    """Nanoseconds per block of each pool operation."""
    pool = BlockPool(NUM_BLOCKS)
    digests = [index.to_bytes(16, "big") for index in range(NUM_BLOCKS)]
    held: list[int] = []

    def reserve() -> None:
        held[:] = pool.reserve((), NUM_BLOCKS, 0) or []

    def publish() -> None:
        for block, digest in zip(held, digests, strict=True):
            pool.publish(block, digest)

    def lookup() -> None:
        held[:] = pool.reserve(pool.match(digests), 0, 0) or []

    def release() -> None:
        pool.release(held)

    times: dict[str, list[int]] = {}
    for _ in range(ROUNDS):
        for action in (reserve, publish, release, lookup, release):
            start = process_time_ns()
            action()
            times.setdefault(action.__name__, []).append(process_time_ns() - start)
    return {f"block_{name}_ns": round(min(spent) / NUM_BLOCKS, 1) for name, spent in times.items()}


def main() -> None:
    """Measure and print."""
    row = {
        "bench": "scheduler",
        "running": RUNNING,
        "prompt_tokens": PROMPT_TOKENS,
        "waiting": WAITING,
        "num_blocks": NUM_BLOCKS,
        "steps": STEPS,
        "python": platform.python_version(),
        **decode_costs(RUNNING),
        **{f"{name}_of_{MANY_RUNNING}": cost for name, cost in decode_costs(MANY_RUNNING).items() if "p50" in name},
        "packing_p50_us": round(packing_us(RUNNING), 1),
        "packing_of_64_p50_us": round(packing_us(64), 1),
        "turn_p50_us": round(turn_us(RUNNING), 1),
        "turn_of_one_p50_us": round(turn_us(1), 1),
        "admission_us": round(admission_us(), 1),
        **{f"admitting_{policy}_p50_us": round(admitting_us(policy), 1) for policy in POLICIES},
        **pool_ns(),
    }
    json.dump(row, sys.stdout)
    print()


if __name__ == "__main__":
    main()
