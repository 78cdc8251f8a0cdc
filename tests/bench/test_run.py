"""The benchmark runs on this machine, small: in process, over HTTP, with its answers checked by transformers."""

import json
import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.parametrize("work", ["offline-64x64x64", "online-c64-1024x128"])
def test_ctrl_c_ends_a_run_with_all_its_processes_and_keeps_the_rows(work: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    words = ["--model", "tiny-shape", "--json", str(path), "--device", "cpu", "--work", "kv-tokens", work]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is begun in the background passes over it
    run = subprocess.Popen(
        [sys.executable, "-m", "bench.engine", *words, "--scale", "full"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    assert run.stderr is not None  # by PIPE
    for line in run.stderr:
        if f"work 2 of 2: {work}" in line:
            break
    os.killpg(run.pid, signal.SIGINT)
    said = run.stderr.read()
    assert run.wait(60) == 130
    assert f"stopped; the rows so far are in {path}" in said
    assert "Traceback" not in said
    assert _ended(run.pid)
    assert [row["work"] for row in _rows(path)] == ["kv-tokens"]


def _ended(group: int) -> bool:
    """Whether a group has no process any more, within what its last ones need to be taken in."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
