"""Compiles kernels into a folder, without a GPU: `python -m pagefleet_engine.baking --folder kernels`.

The engine finds them there when it is started with `PAGEFLEET_KERNELS=FOLDER` and
`TRITON_CACHE_MANAGER=pagefleet_engine.kernels.baked:BakedKernels`. A kernel is found by a hash of its source, of all
that it is compiled for, and of Triton itself: bake with the Python, the packages and the code that will run.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pagefleet_engine import logs
from pagefleet_engine.baking import tasks

DEFAULT_CARDS = ("H200", "A100", "L40S")
DEFAULT_MODELS = ("smollm2-135m", "qwen3-0.6b", "llama-3.1-8b", "llama-3.1-70b/4")
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Compile, say how much of what, and return the exit status: 2 for a name that there is not."""
    logs.configure()
    asked = _parser().parse_args(argv)
    started = time.perf_counter()
    asked.folder.mkdir(parents=True, exist_ok=True)
    asked_tasks = [tasks.Task(model, card) for model in asked.models for card in asked.cards]
    # torch's threads do not go with a fork
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, spawned, initializer=tasks.prepare, initargs=(asked.folder,)) as pool:
        refusals = [refusal for refusal in pool.map(tasks.bake, asked_tasks) if refusal is not None]
    for refusal in refusals:
        log.error("kernels_not_baked", extra={"reason": refusal})
    kernels, kept_bytes = tasks.trim(asked.folder)
    seconds = round(time.perf_counter() - started, 1)
    log.info("kernels_baked", extra={"kernels": kernels, "bytes": kept_bytes, "seconds": seconds})
    return 2 if refusals else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagefleet_engine.baking", description="compile kernels without a GPU")
    parser.add_argument("--folder", type=Path, required=True, help="where the kernels go")
    parser.add_argument("--cards", nargs="*", default=DEFAULT_CARDS, metavar="CARD", help="by name, such as H200")
    parser.add_argument(
        "--models", nargs="*", default=DEFAULT_MODELS, metavar="MODEL",
        help="a name, or the path of a config.json; /N after it for N GPUs that share a copy",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at the same time")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
