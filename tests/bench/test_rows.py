"""Rows of results: what is in them, what a failed work leaves, how the check comes in afterwards."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.engine import facts, progress
from bench.engine.__main__ import main, settings
from bench.engine.program import SUITES, Settings, is_work, notes
from bench.engine.results import Measured, Results, WorkFailed, median, table

FACTS = {"model": "m", "gpu": "g", "commit": "c", "date": "d", "run": "r1"}
REQUIRED = ("work", "model", "value", "unit", "limit_percent", "gpu", "date", "commit")


def fail() -> Measured:
    raise WorkFailed("two of three requests failed")


def test_a_row_has_what_a_reader_of_many_runs_needs(tmp_path: Path) -> None:
    results = Results(tmp_path / "rows.jsonl", FACTS, quiet=True)
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
    assert (found["gpu"], found["commit"], found["triton_cache"]) == (None, "abc123", None)
    assert found["torch"] and found["date"].endswith("Z")
    assert facts.triton_cache() == "cold"
    (tmp_path / "kernel").mkdir()
    assert facts.triton_cache() == "warm"
    monkeypatch.setenv("PAGEFLEET_KERNELS", "kernels")
    assert (facts.triton_cache(), facts.empty_cache()) == ("warm", "baked")


def test_engine_flags_follow_two_dashes_and_works_replace_the_suites(tmp_path: Path) -> None:
    words = ["--model", "tiny-shape", "--json", "x.jsonl", "--suite", "offline", "cache"]
    given = settings(words)
    assert given.chosen == SUITES["offline"] + SUITES["cache"]
    assert given.flags == ()
    given = settings([*words, "--work", "start", "--", "--itl-goal-ms", "50"])
    assert (given.chosen, given.flags) == (("start",), ("--itl-goal-ms", "50"))
    assert given.command.endswith("-- --itl-goal-ms 50")
    command = settings(["--model", "m", "--json", str(tmp_path / "x.jsonl")]).command
    assert command.endswith("--model m --json x.jsonl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--suite", "offlin"], "argument --suite: invalid choice: 'offlin' (choose from"),
        (["--scale", "huge"], "argument --scale: invalid choice: 'huge' (choose from"),
        (["--json", "/proc/no/x"], "argument --json: '/proc/no/x' has no folder, and none can be made: No such file"),
        (["--json", "/"], "argument --json: '/' cannot be written; name a file that can"),
        (["--work", "decode-b0"], "argument --work: 'decode-b0' is no work; there are kv-tokens, "),
        (["--repeat", "0"], "argument --repeat: must be a number at least 1, but it is '0'"),
        (["--", "--max-num-seqs", "x"], "argument --max-num-seqs: must be a number at least 1, but it is 'x'"),
        (["--model", "nonsense"], "argument --model: model 'nonsense': this engine reads pkg:// and file:// URIs"),
    ],
)
def test_what_is_given_wrong_is_named_with_the_way_out_before_anything_is_measured(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = ["--model", "tiny-shape", "--json", str(tmp_path / "x.jsonl")]
    monkeypatch.setattr("sys.argv", ["bench.engine", *right, *words])
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(("gpu", "device", "scale"), [(None, "cpu", "small"), (("H200", "1", "2"), "cuda", "full")])
def test_the_machine_decides_about_device_and_scale_where_the_words_do_not(
    gpu: tuple[str, str, str] | None, device: str, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "gpu", lambda: gpu)
    words = ["--model", "tiny-shape", "--json", "x.jsonl"]
    given = settings(words)
    assert (given.device, given.scale) == (device, scale)
    other = settings([*words, "--device", "paced", "--scale", "small"])
    assert (other.device, other.scale, other.check) == ("paced", "small", False)


def test_suites_leave_out_what_a_cpu_has_not_and_name_no_work_twice() -> None:
    given = Settings(suites=("offline", "static"), model="m", results=Path("x"), device="cuda")
    assert len(given.chosen) == len(set(given.chosen)) == len(SUITES["offline"] + SUITES["static"]) - 1
    on_cpu = replace(given, device="cpu", suites=("static",))
    assert on_cpu.chosen == ("continuous-against-static", "decode-b1", "decode-b1-transformers")
    assert replace(on_cpu, check=False).chosen == ("continuous-against-static", "decode-b1")


def test_what_to_know_of_the_figures_is_said_beforehand() -> None:
    small = Settings(suites=("offline",), model="m", results=Path("x"), device="cpu", scale="small")
    [smaller, busy] = notes(small, load_average=1.5, cores=2)
    assert "prompts have 8 tokens and answers 4" in smaller
    assert "other work loads this machine (1.5 on 2 cores)" in busy
    assert notes(replace(small, scale="full"), 0.5, 2) == [
        "the full scale takes hours on a CPU; --scale small takes minutes"
    ]
    assert notes(replace(small, scale="full", device="cuda"), 9.0, 2) == []


def test_a_run_says_what_begins_how_many_works_there_are_and_how_long_one_lasts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = Results(tmp_path / "rows.jsonl", FACTS, works=2, quiet=True)
    results.measure("a", fail)
    results.measure("b", lambda: Measured(1.0, "s"))
    with progress.telling("loading m", still_s=0.001):
        time.sleep(0.05)
    said = capsys.readouterr().err.splitlines()
    assert [line[9:] for line in said[:4]] == [
        "work 1 of 2: a", "work 2 of 2: b", "loading m", "loading m: 0 s so far",
    ]  # fmt: skip


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
