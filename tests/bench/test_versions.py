"""Versions of a tree: patches are on them, they take turns, and what is printed compares them with the first."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import versions
from bench.versions import Version

PATCH = """--- a/bench/speed.py
+++ b/bench/speed.py
@@ -1 +1 @@
-SPEED = 4.0
+SPEED = 5.0
"""
SCRIPT = """
import json, pathlib, sys
from bench.speed import SPEED
pathlib.Path(sys.argv[1]).write_text(json.dumps({"work": "w", "value": SPEED}))
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tree = tmp_path / "tree"
    (tree / "bench").mkdir(parents=True)
    (tree / "bench" / "speed.py").write_text("SPEED = 4.0\n")
    (tree / "faster.patch").write_text(PATCH)
    (tree / "other.patch").write_text(PATCH.replace("4.0", "3.0"))
    monkeypatch.chdir(tree)
    return tree


def test_each_version_is_measured_in_turns_and_compared_with_the_first(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["main", "faster=faster.patch", "--keep", "rows", "--", sys.executable, "-c", SCRIPT, "{json}"]
    monkeypatch.setattr(sys, "argv", ["versions", *command])
    versions.main()
    *told, names, figures = capfd.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in told] == ["== main", "== faster", "== faster", "== main"]
    assert names.split() == ["main", "faster"]
    assert figures.split() == ["w", "4", "+0.00", "%", "5", "+25.00", "%"]
    kept = {path.name: json.loads(path.read_text())["value"] for path in (tree / "rows").iterdir()}
    assert kept == {"main-1.jsonl": 4.0, "main-2.jsonl": 4.0, "faster-1.jsonl": 5.0, "faster-2.jsonl": 5.0}
    assert (tree / "bench" / "speed.py").read_text() == "SPEED = 4.0\n"


@pytest.mark.parametrize("applying", versions._APPLYING)
def test_a_patch_that_does_not_fit_ends_it(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applying: tuple[str, ...]
) -> None:
    monkeypatch.setattr(versions, "_APPLYING", [applying])
    assert "5.0" in (versions.copied(tree, versions.version("a=faster.patch"), tmp_path) / "bench/speed.py").read_text()
    with pytest.raises(subprocess.CalledProcessError):
        versions.copied(tree, versions.version("other=other.patch"), tmp_path)


def test_a_patch_that_is_not_there_is_told_by_name() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"missing\.patch is not there"):
        versions.version("a=missing.patch")


def test_a_version_that_fails_leaves_a_dash_and_its_exit_status(
    tree: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert versions.run(tree, [sys.executable, "-c", "exit(3)"], tmp_path / "rows.jsonl") == []
    assert capfd.readouterr().err.startswith("exit status 3: ")
    assert versions.table({"w": {"a": [2.0, 4.0, 2.5]}}, ["a", "b"])[1].split() == ["w", "2.5", "+0.00", "%", "-"]


def test_steps_and_works_have_figures_and_failed_works_have_none() -> None:
    rows: list[dict[str, object]] = [
        {"phases_s": {}},
        {"step": "decode-b8", "ms": [3.0, 1.0, 2.0]},
        {"work": "start", "value": None},
    ]
    assert list(versions.measured(rows)) == [("decode-b8", 2.0)]


def test_three_turns_go_there_and_back_and_there() -> None:
    both = [Version("a", ()), Version("b", ())]
    assert [each.name for _, each in versions.turns(both, 3)] == ["a", "b", "b", "a", "a", "b"]
