"""The parts of a run that hold the model, each in a process of its own: it frees the GPU by ending."""

import multiprocessing
import os
from dataclasses import dataclass, replace
from typing import Any

from bench.engine import children, progress, workloads
from bench.engine.answers import GreedyFile
from bench.engine.limits import limits_for
from bench.engine.results import Results
from bench.engine.shapes import SHAPES
from bench.engine.workloads import SCALES, Scale
from pagefleet_api.launch import Launch
from pagefleet_engine.runner import threads

WITH_GRAPHS = "decode-b1"
NO_GRAPHS = f"{WITH_GRAPHS}-without-graphs"
EAGER = f"{WITH_GRAPHS}-transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a stage's process is told. The launch names device and number format, neither of them "auto"."""

    launch: Launch
    model: str
    scale: str
    works: tuple[str, ...]
    repeats: int | None
    results: Results
    greedy: GreedyFile

    @property
    def sizes(self) -> Scale:
        """The scale by its name."""
        return SCALES[self.scale]


def inside_engine(stage: Stage) -> None:
    """All in-process works over one loaded engine, then the greedy answers for the check."""
    from bench.engine import caching, offline
    from bench.engine.inprocess import Engine

    results = stage.results
    with progress.telling(f"loading {stage.model}"):
        engine = Engine(stage.launch)
    limits = limits_for(SHAPES.get(stage.model), results.facts["gpu"], stage.launch.tensor_parallel_size)
    measuring = offline.Offline(engine, stage.sizes, limits, stage.repeats)
    offline.warm_up(measuring.session, stage.sizes, engine.vocab_size)
    caches = caching.Caching(engine, stage.sizes, stage.greedy)
    for work in stage.works:
        if work == NO_GRAPHS:
            results.measure(work, measuring.work(WITH_GRAPHS))
        elif work in caching.CACHE:
            results.measure(work, caches.work(work))
        else:
            results.measure(work, measuring.work(work))
    batch = workloads.greedy(stage.sizes, engine.vocab_size)
    with progress.telling("greedy answers for the check"):
        stage.greedy.add(caching.greedy_answers("in process", batch, engine.session().generate(batch, 0.0)))


def without_graphs(stage: Stage) -> None:
    """One decode step at a time, no CUDA graphs."""
    launch = replace(stage.launch, cuda_graphs=False)
    inside_engine(replace(stage, launch=launch, works=(NO_GRAPHS,)))


def checking(stage: Stage) -> None:
    """Score the greedy answers again, and time transformers' own decode step if that was asked for."""
    threads.wait_briefly(os.environ)  # as the engine's do
    results, launch, answers = stage.results, stage.launch, stage.greedy.read()
    with progress.telling(f"loading {stage.model} in transformers, for the check"):
        import torch

        from bench.engine import rescore
        from pagefleet_engine.runner.loading import DTYPES

        model = rescore.reference(launch, DTYPES[launch.dtype], torch.device(launch.device))
    if EAGER in stage.works:
        results.measure(EAGER, lambda: rescore.eager_step(model, stage.sizes.decode_context))
    with progress.telling(f"{len(answers)} answers scored again by transformers"):
        outcome = rescore.check(model, answers)
    results.settle(outcome)
    print("check", outcome, flush=True)


def run(stage: Stage, target: str) -> str | None:
    """Run one of this module's functions in a fresh process; why it failed, or None."""
    context = multiprocessing.get_context("spawn")
    errors = context.SimpleQueue()
    process = context.Process(target=_guarded, args=(target, stage, errors), name=f"bench-{target}")
    children.start(process)
    try:
        process.join()
    finally:
        process.terminate()
        process.join()
    if not errors.empty():
        return str(errors.get())
    return None if process.exitcode == 0 else f"the process ended with status {process.exitcode}"


def _guarded(target: str, stage: Stage, errors: Any) -> None:
    try:
        {"inside_engine": inside_engine, "without_graphs": without_graphs, "checking": checking}[target](stage)
    except Exception as error:
        import traceback

        traceback.print_exc()
        errors.put(f"{type(error).__name__}: {error}")
