"""Runs as JSON and as tables. Pure."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from pagefleet_api.wording import counted
from pagefleet_cli.simulation import Refusal, Summary

WIDTH = 80
MOST_MOMENTS = 40
"""Lines of a timeline in a table; JSON has them all."""


class Figure(NamedTuple):
    """One figure of a run."""

    label: str
    value: Callable[[Summary], float | None]
    decimals: int


FIGURES = (
    Figure("GPU hours", lambda run: run.gpu_hours, 2),
    Figure("cost", lambda run: run.cost, 2),
    Figure("SLO-violation minutes", lambda run: run.slo_violation_minutes, 0),
    Figure("queue wait p50, s", lambda run: run.queue_wait_s.p50, 3),
    Figure("queue wait p95, s", lambda run: run.queue_wait_s.p95, 3),
    Figure("queue wait p99, s", lambda run: run.queue_wait_s.p99, 3),
    Figure("first token p50, s", lambda run: run.first_token_s.p50, 3),
    Figure("first token p95, s", lambda run: run.first_token_s.p95, 3),
    Figure("first token p99, s", lambda run: run.first_token_s.p99, 3),
    Figure("direction changes", lambda run: run.direction_changes, 0),
    Figure("most pods ready", lambda run: run.most_replicas, 0),
    Figure("mean pods", lambda run: run.mean_replicas, 2),
    Figure("requests", lambda run: run.requests, 0),
    Figure("refused", lambda run: run.refused, 0),
    Figure("aborted", lambda run: run.aborted, 0),
    Figure("duration, s", lambda run: run.duration_s, 1),
)


_WHY = {
    Refusal.QUEUE_FULL: "the pod's queue was full, by engine.maxQueuedRequests {limit}; raise it, or have more pods in "
    "time",
    Refusal.BEYOND_MODEL_LEN: "the prompt leaves no room for an answer in engine.maxModelLen {limit}; raise it",
    Refusal.BEYOND_KV_CACHE: "the prompt leaves no room for an answer in a KV cache of {limit} tokens; --kv-tokens "
    "says what a pod's holds, engine.kvCache makes it larger",
}
_CUT_OFF = "the drain of the pod took longer than drain.timeoutSeconds; raise it"


def as_json(runs: Sequence[Summary]) -> str:
    """The first run's figures; with a second one those under `against`, and the first less the second."""
    document = _entry(runs[0])
    for other in runs[1:]:
        document["against"] = _entry(other)
        document["difference"] = _difference(_entry(runs[0]), _entry(other))
    return json.dumps(document, indent=2)


def _entry(run: Summary) -> dict[str, Any]:
    return {
        "policy": run.name,
        "requests": run.requests,
        "completed": run.completed,
        "refused": run.refused,
        "refusals": {why.value: 0 for why in Refusal} | {each.why.value: each.requests for each in run.refusals},
        "aborted": run.aborted,
        "durationSeconds": round(run.duration_s, 3),
        "gpuHours": round(run.gpu_hours, 4),
        "cost": None if run.cost is None else round(run.cost, 2),
        "queueWaitSeconds": _rounded(asdict(run.queue_wait_s)),
        "timeToFirstTokenSeconds": _rounded(asdict(run.first_token_s)),
        "sloTimeToFirstTokenSeconds": run.slo_s,
        "sloViolationMinutes": run.slo_violation_minutes,
        "directionChanges": run.direction_changes,
        "maxReplicas": run.most_replicas,
        "meanReplicas": round(run.mean_replicas, 3),
        "timeline": [moment._asdict() for moment in run.timeline],
    }


def _rounded(quantiles: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in quantiles.items()}


def _difference(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of all numbers that both have."""
    differences: dict[str, Any] = {}
    for name, value in one.items():
        if isinstance(value, dict):
            differences[name] = _difference(value, other[name])
        elif isinstance(value, (int, float)) and other[name] is not None:
            differences[name] = round(value - other[name], 4)
    return differences


def rows(runs: Sequence[Summary]) -> list[tuple[str, ...]]:
    """A row for each figure that any run has: its label, each run's, and with two runs how they differ."""
    found = []
    for figure in FIGURES:
        values = [figure.value(run) for run in runs]
        if all(value is None for value in values):
            continue
        texts = ["-" if value is None else f"{value:,.{figure.decimals}f}" for value in values]
        if len(values) == 2:
            one, other = values
            texts.append("-" if one is None or other is None else f"{one - other:+,.{figure.decimals}f}")
        found.append((figure.label, *texts))
    return found


def reasons(run: Summary) -> list[str]:
    """Why requests were refused or cut off, and the setting that would change it: a line each."""
    lines = [
        f"{run.name}: {counted(each.requests, 'request')} refused: {_WHY[each.why].format(limit=each.limit)}"
        for each in run.refusals
    ]
    if run.aborted:
        lines.append(f"{run.name}: {counted(run.aborted, 'request')} aborted: {_CUT_OFF}")
    return lines


def headings(runs: Sequence[Summary]) -> tuple[str, ...]:
    """Over the columns of `rows`."""
    return ("", *(run.name for run in runs), *(("difference",) if len(runs) == 2 else ()))


def as_table(runs: Sequence[Summary]) -> str:
    """The figures side by side and each timeline, no wider than 80 columns."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, emoji=False, markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    for place, heading in enumerate(headings(runs)):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows(runs):
        table.add_row(*row)
    console.print(table)
    for line in (line for run in runs for line in reasons(run)):
        console.print()
        console.print(line)
    for run in runs:
        console.print()
        console.print(f"{run.name}: pods ready and asked for", soft_wrap=True)
        console.print(_timeline(run))
        if len(run.timeline) > MOST_MOMENTS:
            console.print(f"… {len(run.timeline) - MOST_MOMENTS} more; -o json has them all")
    written = console.file
    assert isinstance(written, io.StringIO)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _timeline(run: Summary) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    for heading in ("TIME", "READY", "DESIRED"):
        table.add_column(heading, justify="right")
    table.add_column("REASON")
    for moment in run.timeline[:MOST_MOMENTS]:
        table.add_row(clock(moment.t), str(moment.replicas), str(moment.desired), moment.reason)
    return table


def clock(seconds: float) -> str:
    """Hours, minutes and seconds since the beginning."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
