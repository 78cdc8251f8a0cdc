"""From files to runs, and from runs to output."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pagefleet_cli.errors import InputWrong
from pagefleet_cli.rehearsal import figure, report
from pagefleet_cli.rehearsal.policies import Options, read
from pagefleet_cli.simulation import Summary, play, summarise
from pagefleet_cli.traces import Means, read_trace


class Chance(NamedTuple):
    """What fills in where a trace or a start is not certain."""

    seed: int = 0
    prompt_tokens: int = 1000
    output_tokens: int = 250


class Limits(NamedTuple):
    """What a run may be at most; None: anything."""

    slo_violation_minutes: int | None = None
    gpu_hours: float | None = None
    p95_wait_s: float | None = None

    def exceeded(self, run: Summary) -> list[str]:
        """A line for each limit that the run is above."""
        rows = (
            ("--max-slo-violation-minutes", run.slo_violation_minutes, self.slo_violation_minutes),
            ("--max-gpu-hours", run.gpu_hours, self.gpu_hours),
            ("--max-p95-wait-s", run.queue_wait_s.p95, self.p95_wait_s),
        )
        return [
            f"{run.name}: {value:g} is above {option} {limit:g}"
            for option, value, limit in rows
            if value is not None and limit is not None and value > limit
        ]


def run(
    trace: str, policies: Sequence[str], options: Options, chance: Chance, gpu_price: float | None
) -> list[Summary]:
    """Each policy with the same trace and the same chance. Raises InputWrong."""
    rehearsed = [read(file, options) for file in policies]
    means = Means(chance.prompt_tokens, chance.output_tokens)
    requests = read_trace(trace, means, random.Random(chance.seed).random)
    summaries = []
    for each in rehearsed:
        ran = play(each.policy, requests, each.fleet, random.Random(chance.seed).random)
        one = summarise(each.name, ran, gpus_per_pod=each.gpus_per_pod, gpu_price=gpu_price, slo_s=each.slo_s)
        summaries.append(one)
    return summaries


def write(runs: Sequence[Summary], output: str, out: Path | None) -> None:
    """As table, json, html or png, to a file or standard output. Raises InputWrong when that cannot be."""
    if output == "png":
        if out is None and sys.stdout.isatty():
            raise InputWrong("-o png writes a picture, and standard output is a terminal; give --out PATH")
        content = figure.as_png(runs)
    elif output == "html":
        content = figure.as_html(runs).encode()
    else:
        content = f"{report.as_json(runs) if output == 'json' else report.as_table(runs)}\n".encode()
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        out.write_bytes(content)
    except OSError as error:
        raise InputWrong(f"--out: {out}: {error.strerror}") from error
