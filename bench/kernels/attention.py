"""Speed of the attention kernels on a GPU, each shape in many configurations: one run says which to choose.

`python -m bench.kernels.attention [--json OUT] [--only decode|prefill|dense] [--workers N]`. 8B shape: 32 query
heads, 8 KV heads of 128, bfloat16. Decode is measured as bytes of keys and values a second (of 4,240 GB/s), prefill
as causal operations a second (of 774 TF/s), both by CUDA graphs over more memory than the L2 cache holds; the first
configuration's result is what the others' are compared with. Compiling comes first, in processes of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.kernels.attention_shapes import (
    DECODE_CASES,
    DENSE_CASES,
    PREFILL_CASES,
    Case,
    Problem,
    dense_launch,
    launches,
    problem,
)

PEAK_GB_PER_S = 4240.0
PEAK_TF_PER_S = 774.0
COLD_BYTES = 200 << 20
MOST_COPIES = 32
REPLAYS = 5


class Row(NamedTuple):
    """One measured case: `rate` in GB/s or TF/s, and its part of the peak."""

    case: str
    config: str
    microseconds: float
    rate: float
    unit: str
    percent: float
    difference: float


def graph_seconds(calls: list[Callable[[], Any]]) -> float:
    """Seconds of one call, median over replays of a graph of all of them."""
    for call in calls[:1]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(calls))
    return float(statistics.median(times[1:]))


def copies(case: Case) -> int:
    """As many problems as together pass the L2 cache."""
    return max(1, min(MOST_COPIES, -(-COLD_BYTES // case.kv_bytes)))


def row(case: Case, config: str, seconds: float, difference: float) -> Row:
    """Rates of a case that took `seconds`."""
    if case.unit == "GB/s":
        rate, peak = case.kv_bytes / seconds / 1e9, PEAK_GB_PER_S
    else:
        rate, peak = case.operations / seconds / 1e12, PEAK_TF_PER_S
    return Row(case.name, config, seconds * 1e6, rate, case.unit, 100 * rate / peak, difference)


def measure(case: Case, multiprocessors: int) -> Iterator[Row | str]:
    """A row for each configuration, or why it failed."""
    problems = [problem(case, "cuda") for _ in range(copies(case))]
    first: torch.Tensor | None = None
    for config, launch in launches(case, multiprocessors):
        try:
            problems[0].out.fill_(float("nan"))
            launch(problems[0])
            found = problems[0].out.float()
            first = found if first is None else first
            difference = float((found - first).abs().nan_to_num(float("inf")).max())
            yield row(case, config, graph_seconds([bound(launch, each) for each in problems]), difference)
        except Exception as error:
            yield f"{case.name} {config}: {type(error).__name__}: {str(error)[:200]}"


def bound(launch: Callable[[Problem], Any], each: Problem) -> Callable[[], Any]:
    return lambda: launch(each)


def measure_dense(case: Case) -> Iterator[Row | str]:
    """The same shape by torch's own attention on dense tensors."""
    for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
        try:
            yield row(case, backend.lower(), graph_seconds([dense_launch(case, backend)]), 0.0)
        except Exception as error:
            yield f"{case.name} {backend}: {type(error).__name__}: {str(error)[:200]}"


def compile_share(index: int, workers: int) -> None:
    """Launch every `workers`-th configuration once on a small problem, so that it lies in Triton's cache."""
    seen: dict[str, tuple[Case, Callable[[Problem], Any]]] = {}
    for case in DECODE_CASES + PREFILL_CASES:
        for config, launch in launches(case, 132):
            seen[config.removesuffix(" <- chosen")] = (case.small, launch)
    for case, launch in list(seen.values())[index::workers]:
        try:
            launch(problem(case, "cuda"))
        except Exception as error:
            print(f"compiling {case.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    torch.cuda.synchronize()


def compile_all(workers: int) -> None:
    """Compile every configuration, `workers` processes at a time."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "bench.kernels.attention", "--workers", str(workers), "--compile"]
    running = [subprocess.Popen([*command, str(index)]) for index in range(workers)]
    for process in running:
        process.wait()
    print(f"compiled in {time.perf_counter() - began:.1f} s", flush=True)


def report(rows: list[Row]) -> None:
    """The rows of each case, fastest first."""
    for name in dict.fromkeys(each.case for each in rows):
        print(f"\n{name}")
        for each in sorted((each for each in rows if each.case == name), key=lambda each: each.microseconds):
            print(
                f"  {each.config:34s} {each.microseconds:9.1f} us {each.rate:8.1f} {each.unit} {each.percent:5.1f} %"
                f"  differs by {each.difference:.4f}"
            )


def run(only: str | None) -> list[Row]:
    """Measure everything; failures are printed as they happen."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    rows: list[Row] = []
    for kind, cases in (("decode", DECODE_CASES), ("prefill", PREFILL_CASES), ("dense", DENSE_CASES)):
        for case in cases if only in (None, kind) else ():
            try:
                for found in measure_dense(case) if kind == "dense" else measure(case, multiprocessors):
                    if isinstance(found, str):
                        print(found, flush=True)
                    else:
                        rows.append(found)
                torch.cuda.empty_cache()
            except Exception as error:
                print(f"{case.name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    return rows


def main() -> None:
    """Compile, measure, print and, where asked, write JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=("decode", "prefill", "dense"))
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--compile", type=int, help="compile this worker's share and end")
    arguments = parser.parse_args()
    if arguments.compile is not None:
        compile_share(arguments.compile, arguments.workers)
        return
    compile_all(arguments.workers)
    began = time.perf_counter()
    rows = run(arguments.only)
    report(rows)
    print(f"\nmeasured in {time.perf_counter() - began:.1f} s")
    if arguments.json is not None:
        arguments.json.write_text("".join(json.dumps(each._asdict()) + "\n" for each in rows))


if __name__ == "__main__":
    main()
