"""`python -m bench.engine.tensor_parallel`: one model on two GPUs against the same model on one.

The same dummy weights score the same prompts and continue them greedily; bfloat16 on two GPUs must be no further from
float32 than bfloat16 on one is. Then decode steps are timed, CUDA graphs on. One JSON line for each leg and one for the
comparison; each leg is a process of its own with a time limit, and what fails says why.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.engine.shapes import SHAPES, write_shape
from pagefleet_api.launch import Launch
from pagefleet_api.sizing import blocks_for

PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 8, 128, 16
LEG_TIMEOUT_S = 200
FIRST_ID = 10**9
"""Request ids of the works that are timed later start at 1."""
MOST_NOISE = 1.5
"""How much further from float32 two GPUs may be than one is, on average."""
NEAR_TIE, NOISE_TIMES = 0.1, 4.0
"""Greedy answers may part where the likeliest tokens' logits are closer than this, or than so many times what the two
differ by on average: random weights make flat logits."""
LEGS = {"one-float32": "1", "one": "0", "two": "0,1"}
"""Each leg and the GPUs that it sees; the first two run at the same time."""


def leg(name: str, model: str, sizes: Sequence[int]) -> dict[str, Any]:
    """Load, score, continue, time."""
    from bench.engine.inprocess import Engine
    from bench.engine.offline import Offline
    from bench.engine.workloads import SCALES

    folder = write_shape(model, Path(tempfile.mkdtemp()))
    launch = Launch(
        model=f"file://{folder}", device="cuda", dtype="bfloat16", load_format="dummy", prefix_cache=False,
        max_model_len=4096, max_num_seqs=256, tensor_parallel_size=2 if name == "two" else 1,
    )  # fmt: skip
    began_s = time.perf_counter()
    if name == "one-float32":
        return {**scores(_float32_runner(launch), SHAPES[model]["vocab_size"]), "decode_ms": {}}
    engine = Engine(launch)
    loaded_s = time.perf_counter() - began_s
    found: dict[str, Any] = {"load_s": loaded_s, "num_blocks": engine.loaded.runner.num_blocks}
    found |= {"phase_s": engine.loaded.phase_s, "memory_bytes": engine.loaded.memory_bytes}
    found |= scores(engine.loaded.runner, engine.vocab_size)
    measuring = Offline(engine, SCALES["full"], None, 1)
    measuring.decode(1)
    return found | {"decode_ms": {f"b{size}": round(measuring.decode(size).value, 3) for size in sizes}}


def _float32_runner(launch: Launch) -> Any:
    """The same numbers as the other legs' weights, computed with in float32."""
    import torch

    from pagefleet_engine.models.config_files import read_config
    from pagefleet_engine.models.random_weights import RandomWeights
    from pagefleet_engine.models.source import resolve
    from pagefleet_engine.models.tensor_names import expected_shapes
    from pagefleet_engine.runner.cuda import loading
    from pagefleet_engine.runner.cuda.peers import Alone

    config = read_config(resolve(launch.model, weights=False))
    weights = RandomWeights(expected_shapes(config), device=torch.device("cuda"), dtype=torch.bfloat16)
    launch = Launch.parse([*launch.argv(), "--no-cuda-graphs", "--num-kv-blocks", "4096"])
    return loading.load(launch, config, weights, torch.float32, 4096, 2048, Alone()).runner


def scores(runner: Any, vocab_size: int) -> dict[str, Any]:
    """Log-probabilities of the prompts' tokens; greedy answers, and how far the best two tokens were apart."""
    from pagefleet_engine.steps import StepPlan, execute

    source = random.Random(0)
    prompts = [[source.randrange(vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    logprobs: list[list[float]] = []
    answers: list[list[int]] = [[] for _ in prompts]
    gaps: list[list[float]] = [[] for _ in prompts]
    for count in range(ANSWER_TOKENS):
        steps = [_step(index, prompts[index], answers[index]) for index in range(PROMPTS)]
        for index, result in enumerate(execute(runner, StepPlan(tuple(steps)))):
            if result.failure is not None or result.token_id is None or result.logprobs is None:
                raise RuntimeError(f"sequence {index} failed in step {count}: {result.failure}")
            if count == 0:
                logprobs.append([entry.logprob for entry in result.prompt_logprobs])
            answers[index].append(result.token_id)
            gaps[index].append(result.logprobs.top[0][1] - result.logprobs.top[1][1])
    return {"logprobs": logprobs, "answers": answers, "gaps": gaps}


def _step(index: int, prompt: Sequence[int], answer: Sequence[int]) -> Any:
    """The prompt, or the answer's last token."""
    from pagefleet_engine.steps import Sampling, SequenceStep

    width = blocks_for(PROMPT_TOKENS + ANSWER_TOKENS)
    return SequenceStep(
        sequence_id=FIRST_ID + index,
        token_ids=tuple(answer[-1:] or prompt),
        start=PROMPT_TOKENS + len(answer) - 1 if answer else 0,
        block_table=tuple(range(index * width, (index + 1) * width)),
        sample=True,
        sampling=Sampling(seed=0, temperature=0.0, top_logprobs=2),
        prompt_logprobs=None if answer else 0,
    )


def compare(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether two GPUs give what one gives, and the figures that say so."""
    one, two, reference = found["one"], found["two"], found.get("one-float32", {})
    row: dict[str, Any] = {"apart_mean": _distance(one, two)}
    passed = []
    if "logprobs" in reference:
        row |= {"error_one": _distance(one, reference), "error_two": _distance(two, reference)}
        passed.append(row["error_two"] <= MOST_NOISE * row["error_one"])
    partings = [_parting(*each) for each in zip(one["answers"], two["answers"], one["gaps"], strict=True)]
    row["gaps_where_answers_part"] = [round(gap, 4) for gap in partings if gap is not None]
    near_tie = max(NEAR_TIE, NOISE_TIMES * row["apart_mean"])
    passed.append(all(gap is None or gap < near_tie for gap in partings))
    return row | {"passed": all(passed), "decode_speedup": _speedups(one["decode_ms"], two["decode_ms"])}


def _distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Mean absolute difference of the log-probabilities."""
    left, right = (itertools.chain.from_iterable(found["logprobs"]) for found in (one, other))
    return fmean(abs(a - b) for a, b in zip(left, right, strict=True))


def _parting(one: Sequence[int], other: Sequence[int], gaps: Sequence[float]) -> float | None:
    """The gap at the first token that differs."""
    return next((gap for left, right, gap in zip(one, other, gaps, strict=True) if left != right), None)


def _speedups(one: dict[str, float], two: dict[str, float]) -> dict[str, float]:
    return {size: round(one[size] / two[size], 3) for size in one if size in two}


def _start(name: str, model: str, sizes: Sequence[int], out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "bench.engine.tensor_parallel", "--leg", name, "--model", model]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": LEGS[name]}
    return subprocess.Popen([*command, "--out", str(out), "--sizes", *map(str, sizes)], env=environment)


def _finish(name: str, process: "subprocess.Popen[bytes]", out: Path) -> dict[str, Any]:
    """What the leg wrote, and how its process ended: a hang after the work is a fault too."""
    try:
        ended = f"status {process.wait(LEG_TIMEOUT_S)}"
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        ended = f"killed after {LEG_TIMEOUT_S} s"
    found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"error": "no result"}
    shown = {key: value for key, value in found.items() if key not in {"logprobs", "answers", "gaps"}}
    print(json.dumps({"leg": name, "ended": ended, **shown}), flush=True)
    return found


def main() -> int:
    """0 when two GPUs agree with one."""
    parser = argparse.ArgumentParser(prog="bench.engine.tensor_parallel")
    parser.add_argument("--model", choices=SHAPES, default="llama-8b-shape")
    parser.add_argument("--sizes", nargs="*", type=int, default=[1, 64, 256], help="batches whose decode is timed")
    parser.add_argument("--leg", choices=LEGS, help="do one part in this process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.leg is not None:
        try:
            found = leg(given.leg, given.model, given.sizes)
        except Exception as error:
            given.out.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
            raise
        given.out.write_text(json.dumps(found))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        outs = {name: Path(folder) / f"{name}.json" for name in LEGS}
        found = {}
        for together in (("one-float32", "one"), ("two",)):
            running = {name: _start(name, given.model, given.sizes, outs[name]) for name in together}
            found |= {name: _finish(name, process, outs[name]) for name, process in running.items()}
    try:
        row = compare(found)
    except KeyError as error:
        row = {"passed": False, "error": f"a leg gave no {error}"}
    print(json.dumps({"leg": "comparison", "model": given.model, **row}), flush=True)
    return 0 if row["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
