"""Rows of results: one JSON object a line, written as they come, judged once the answers are checked."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.engine import limits, progress

MORE_IS_BETTER = {"tok/s": True, "tokens": True, "percent": True, "ratio": True, "ms": False, "s": False}
"""By unit."""


class Measured(NamedTuple):
    """One work's figure; `limit` is the best that the machine allows, in the same unit, where it is known."""

    value: float
    unit: str
    limit: float | None = None
    detail: Mapping[str, Any] = {}


class WorkFailed(Exception):
    """A work gave no figure: requests failed, or answers had the wrong length."""


def median(measure: Callable[[], float], repeats: int) -> tuple[float, dict[str, Any]]:
    """The median of `repeats` runs, and what to print of them: every run and the spread in percent of the median."""
    runs = [measure() for _ in range(repeats)]
    middle = statistics.median(runs)
    spread = 100 * (max(runs) - min(runs)) / middle if middle else 0.0
    return middle, {"runs": [significant(run) for run in runs], "spread_percent": round(spread, 2)}


def significant(value: float) -> float:
    """Four digits are more than a run is worth."""
    return float(f"{value:.4g}")


@dataclass(slots=True)
class Results:
    """The rows of one run in one file; every process of the run has its own object."""

    path: Path
    facts: Mapping[str, Any]
    """In every row: model, machine, commit, date and the run's id under `run`."""
    works: int = 0
    """How many the run has; told with each that begins."""
    quiet: bool = False

    def add(self, work: str, measured: Measured) -> None:
        """Write and print a figure."""
        share = limits.percent(measured.value, measured.limit, more_is_better=MORE_IS_BETTER[measured.unit])
        self._write(
            {
                "work": work,
                "value": significant(measured.value),
                "unit": measured.unit,
                "limit_percent": share,
                "limit": None if measured.limit is None else significant(measured.limit),
                **measured.detail,
            }
        )

    def fail(self, work: str, error: BaseException) -> None:
        """Write and print that a work gave no figure, and why."""
        reason = f"{type(error).__name__}: {error}"
        self._write({"work": work, "value": None, "unit": None, "limit_percent": None, "error": reason[:600]})

    def measure(self, work: str, measure: Callable[[], Measured]) -> None:
        """A figure, or why there is none; the works after it go on."""
        told = {row["work"] for row in self.rows()}
        try:
            with progress.telling(f"work {len(told) + 1} of {max(self.works, len(told) + 1)}: {work}"):
                measured = measure()
        except Exception as error:  # whatever it was, the next work may still do
            self.fail(work, error)
        else:
            self.add(work, measured)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of this run so far, also those that other processes wrote."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [row for row in map(json.loads, lines) if row["run"] == self.facts["run"]]

    def settle(self, check: Mapping[str, Any]) -> None:
        """Put the outcome of the answers' check into every row of this run."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        rows = [json.loads(line) for line in lines]
        for row in rows:
            if row["run"] == self.facts["run"]:
                row["check"] = dict(check)
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        new.replace(self.path)  # whoever stops the run in between loses no row

    def _write(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(
                json.dumps({**row, **{name: said for name, said in self.facts.items() if name not in row}}) + "\n"
            )
        if not self.quiet:
            print(json.dumps(row), flush=True)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows for a reader."""
    lines = [f"{'work':<28}{'value':>12} {'unit':<8}{'limit':>12}{'%':>7}  notes"]
    for row in rows:
        value = "failed" if row["value"] is None else f"{row['value']:g}"
        limit = "" if row.get("limit") is None else f"{row['limit']:g}"
        share = "" if row["limit_percent"] is None else f"{row['limit_percent']:.1f}"
        lines.append(f"{row['work']:<28}{value:>12} {row['unit'] or '':<8}{limit:>12}{share:>7}  {_notes(row)}")
    return "\n".join(lines)


def _notes(row: Mapping[str, Any]) -> str:
    names = ("error", "spread_percent", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms", "itl_max_ms")
    return ", ".join(f"{name} {row[name]}" for name in names if row.get(name) is not None)[:160]
