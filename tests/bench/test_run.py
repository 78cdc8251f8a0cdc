"""The benchmark runs on this machine, small: in process, over HTTP, with its answers checked by transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.engine.program import Settings, run

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
WORKS = ("kv-tokens", "decode-b1", "offline-mixed", "memory-stress", "cold-warm-equal", "online-c2-16x8", "start")


def test_figures_come_with_their_inputs_and_answers_that_transformers_agrees_with(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    settings = Settings(
        suites=("offline",), model="tiny-shape", results=path, works=WORKS, device="cpu", scale="small", repeats=1
    )
    assert run(settings)
    rows = {row["work"]: row for row in _rows(path)}
    assert set(rows) == set(WORKS)
    assert all(row["value"] is not None and row["check"]["passed"] for row in rows.values())
    assert rows["start"]["check"]["answers"] == 16 * 4
    assert rows["online-c2-16x8"]["failures"] == 0
    assert rows["offline-mixed"]["weights"] == "dummy"


def test_an_engine_that_cannot_start_gives_each_work_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    flags = ("--max-model-len", "99999999")
    settings = Settings(
        suites=("offline",), model="tiny-shape", results=path, works=("decode-b1", "start"), device="cpu",
        scale="small", flags=flags, check=False,
    )  # fmt: skip
    assert not run(settings)
    reasons = {row["work"]: row["error"] for row in _rows(path)}
    assert "--max-model-len 99999999" in reasons["decode-b1"]
    assert "status 1" in reasons["start"]


def _rows(path: Path) -> list[dict[str, Any]]:

    return [json.loads(line) for line in path.read_text().splitlines()]
