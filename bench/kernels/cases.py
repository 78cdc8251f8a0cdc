"""Times kernels against each other on a GPU: one case, the same inputs, every variant."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

PEAK_GB_PER_S = 4240.0
PEAK_TF_PER_S = 774.0
COLD_BYTES = 200 << 20
"""Inputs take turns until together they pass the L2 cache."""
MOST_COPIES = 48
FEWEST_CALLS = 12
REPLAYS = 4

Inputs = dict[str, torch.Tensor]
Variant = Callable[[Inputs], torch.Tensor]


class Case(NamedTuple):
    """What is computed: `inputs` makes one set, each variant returns its result, the first one's is right.

    `moved_bytes` and `operations` are the fewest that the work takes; `changed` names the input that variants
    add to.
    """

    name: str
    inputs: Callable[[], Inputs]
    variants: dict[str, Variant]
    moved_bytes: int
    operations: int = 0
    changed: str | None = None


class Row(NamedTuple):
    """One variant's time and part of the limit; `difference` is relative to the first variant's result.

    It is None for a result of another shape.
    """

    case: str
    variant: str
    microseconds: float
    percent_of_limit: float
    difference: float | None


def limit_seconds(case: Case) -> float:
    """The least time by the memory's and the matrix units' measured rates."""
    return max(case.moved_bytes / (PEAK_GB_PER_S * 1e9), case.operations / (PEAK_TF_PER_S * 1e12))


def graph_seconds(variant: Variant, sets: Sequence[Inputs]) -> float:
    """Seconds of one call, median over replays of a graph in which the input sets take turns."""
    calls = max(len(sets), FEWEST_CALLS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(calls):
            variant(sets[call % len(sets)])
    times = []
    for _ in range(REPLAYS + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / calls)
    return float(statistics.median(times[1:]))


def measure(case: Case) -> Iterator[Row | str]:
    """A row for each variant, or why it failed."""
    torch.manual_seed(0)
    copies = max(1, min(MOST_COPIES, -(-COLD_BYTES // case.moved_bytes)))
    sets = [case.inputs() for _ in range(copies)]
    right: torch.Tensor | None = None
    for name, variant in case.variants.items():
        try:
            if case.changed is not None:
                sets[0][case.changed].fill_(0.5)
            found = variant(sets[0]).float()
            right = found.clone() if right is None else right
            comparable = found.shape == right.shape
            difference = float((found - right).norm() / right.norm().clamp(min=1e-20)) if comparable else None
            seconds = graph_seconds(variant, sets)
            yield Row(case.name, name, seconds * 1e6, 100 * limit_seconds(case) / seconds, difference)
        except Exception as error:
            yield f"{case.name} {name}: {type(error).__name__}: {str(error)[:200]}"


def compile_share(cases: Sequence[Case], index: int, workers: int) -> None:
    """Run every `workers`-th variant once, so that its kernel lies in Triton's cache."""
    pairs = [(case, name) for case in cases for name in case.variants]
    for case, name in pairs[index::workers]:
        try:
            case.variants[name](case.inputs())
        except Exception:  # the measuring process says so
            torch.cuda.empty_cache()
    torch.cuda.synchronize()


def compile_all(module: str, only: str, workers: int) -> None:
    """Compile every variant, in processes of their own; no measuring while they run."""
    began = time.perf_counter()
    command = [sys.executable, "-m", module, "--only", only, "--workers", str(workers), "--compile"]
    running = [subprocess.Popen([*command, str(index)]) for index in range(workers)]
    for process in running:
        process.wait()
    print(f"compiled in {time.perf_counter() - began:.1f} s", flush=True)


def report(rows: Sequence[Row], shown: int) -> None:
    """The fastest rows of each case, and torch's."""
    for name in dict.fromkeys(row.case for row in rows):
        print(f"\n{name}")
        ordered = sorted((row for row in rows if row.case == name), key=lambda row: row.microseconds)
        for rank, row in enumerate(ordered):
            if rank < shown or row.variant.startswith("torch") or row.variant.endswith("*"):
                figures = f"{row.microseconds:10.2f} us{row.percent_of_limit:7.1f} %"
                figures += "" if row.difference is None else f"  ±{row.difference:.4f}"
                print(f"  {row.variant:44s}{figures}")


def run(module: str, all_cases: Callable[[], Sequence[Case]]) -> None:
    """The program of one bench module: compile, measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=f"{module}: kernels against torch on this GPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--shown", type=int, default=4, help="fastest variants that are printed")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if arguments.only in case.name]
    if arguments.compile is not None:
        compile_share(cases, arguments.compile, arguments.workers)
        return
    compile_all(module, arguments.only, arguments.workers)
    rows: list[Row] = []
    for case in cases:
        for found in measured(case):
            if isinstance(found, str):
                print(found, flush=True)
            else:
                rows.append(found)
    report(rows, arguments.shown)
    if arguments.json is not None:
        entries: list[dict[str, Any]] = [row._asdict() for row in rows]
        arguments.json.write_text(json.dumps(entries, indent=1) + "\n")


def measured(case: Case) -> Iterator[Row | str]:
    """`measure`, and a line for a case whose inputs cannot be made."""
    try:
        yield from measure(case)
    except Exception as error:
        yield f"{case.name}: {type(error).__name__}: {str(error)[:200]}"
