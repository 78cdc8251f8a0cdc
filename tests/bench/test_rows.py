"""Rows of results: what is in them, what a failed work leaves, how the check comes in afterwards."""

import json
from pathlib import Path

import pytest

from bench.engine import facts
from bench.engine.__main__ import settings
from bench.engine.program import SUITES, is_work
from bench.engine.results import Measured, Results, WorkFailed, median, table

FACTS = {"model": "m", "gpu": "g", "commit": "c", "date": "d", "run": "r1"}
REQUIRED = ("work", "model", "value", "unit", "limit_percent", "gpu", "date", "commit")


def fail() -> Measured:
    raise WorkFailed("two of three requests failed")


def test_a_row_has_what_a_reader_of_many_runs_needs(tmp_path: Path) -> None:
    results = Results(tmp_path / "new" / "rows.jsonl", FACTS, quiet=True)
    results.add("decode-b1", Measured(4.51234, "ms", 3.57, {"inputs": "batch 1"}))
    [row] = [json.loads(line) for line in results.path.read_text().splitlines()]
    assert all(name in row for name in REQUIRED)
    assert (row["value"], row["limit_percent"], row["inputs"]) == (4.512, 79.1, "batch 1")


def test_a_work_that_fails_has_a_row_with_the_reason_and_the_next_one_goes_on(tmp_path: Path) -> None:
    results = Results(tmp_path / "rows.jsonl", FACTS, quiet=True)
    results.measure("a", fail)
    results.measure("b", lambda: Measured(1.0, "s"))
    first, second = results.rows()
    assert first["value"] is None
    assert first["error"] == "WorkFailed: two of three requests failed"
    assert second["value"] == 1.0
    assert "failed" in table(results.rows())


def test_the_check_is_put_into_this_runs_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Results(path, FACTS | {"run": "r0"}, quiet=True).add("a", Measured(1.0, "s"))
    results = Results(path, FACTS, quiet=True)
    results.add("a", Measured(2.0, "s"))
    results.settle({"passed": True})
    old, new = [json.loads(line) for line in path.read_text().splitlines()]
    assert "check" not in old
    assert new["check"] == {"passed": True}
    assert [row["value"] for row in results.rows()] == [2.0]


def test_a_work_may_say_more_exactly_what_the_run_says(tmp_path: Path) -> None:
    results = Results(tmp_path / "rows.jsonl", FACTS | {"triton_cache": "warm"}, quiet=True)
    results.add("start-cold", Measured(1.0, "s", None, {"triton_cache": "cold"}))
    assert results.rows()[0]["triton_cache"] == "cold"


def test_the_median_of_three_runs_comes_with_all_of_them_and_their_spread() -> None:
    runs = iter([3.0, 1.0, 2.0])
    assert median(lambda: next(runs), 3) == (2.0, {"runs": [3.0, 1.0, 2.0], "spread_percent": 100.0})


def test_facts_name_the_software_and_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(facts.COMMIT_VARIABLE, "abc123")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = facts.machine(has_gpu=False)
    assert (found["gpu"], found["commit"], found["triton_cache"]) == (None, "abc123", "cold")
    assert found["torch"] and found["date"].endswith("Z")
    (tmp_path / "kernel").mkdir()
    assert facts.triton_cache() == "warm"
    monkeypatch.setenv("PAGEFLEET_KERNELS", "kernels")
    assert (facts.triton_cache(), facts.empty_cache()) == ("warm", "baked")


def test_engine_flags_follow_two_dashes_and_works_replace_the_suites() -> None:
    words = ["--model", "tiny-shape", "--json", "x.jsonl", "--suite", "offline", "cache"]
    given = settings(words)
    assert given.chosen == SUITES["offline"] + SUITES["cache"]
    assert given.flags == ()
    both = settings([*words[:4], "--suite", "offline", "static"]).chosen
    assert len(both) == len(set(both)) == len(SUITES["offline"]) + len(SUITES["static"]) - 1
    given = settings([*words, "--work", "start", "--", "--itl-goal-ms", "50"])
    assert (given.chosen, given.flags) == (("start",), ("--itl-goal-ms", "50"))
    assert given.command.endswith("-- --itl-goal-ms 50")
    assert settings(["--model", "m", "--json", "/somewhere/x.jsonl"]).command.endswith("--model m --json x.jsonl")


def test_all_works_that_were_asked_for_are_in_a_suite() -> None:
    every = {work for works in SUITES.values() for work in works}
    decodes = {f"decode-b{batch}" for batch in (1, 8, 64, 256)}
    loops = {f"online-c{clients}-1024x128" for clients in (1, 64, 256)}
    others = {"offline-mixed", "prefill-32x2k", "start", "kv-tokens", "long-prompt-itl-p99", "prefix-ttft-drop"}
    assert decodes | loops | others <= every
    assert all(map(is_work, every))
    assert SUITES["static"].index("decode-b1") < SUITES["static"].index("graphs-drop"), "which needs it"


@pytest.mark.parametrize("name", ["decode", "decode-b", "online-c64", "long-prompt", "prefill-8", "offline-mixed2", ""])
def test_a_work_that_there_is_not_is_refused_before_anything_is_loaded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        settings(["--model", "m", "--json", "x.jsonl", "--work", "decode-b3", name])
    assert f"{name!r} is no work; there are kv-tokens, prefill-32x2k" in capsys.readouterr().err
