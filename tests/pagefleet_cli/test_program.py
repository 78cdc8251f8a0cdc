import errno
import importlib
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from pagefleet_cli import program
from tests.pagefleet_cli.command import Shell


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    script = (
        "import sys; from pagefleet_cli import program\n"
        "try: program.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'pydantic', 'yaml', 'rich', 'kubernetes', 'aiohttp', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(command in ran.stdout for command in ("plan", "simulate", "explain"))
    assert ran.stdout.splitlines()[-1] == "[]", "whoever asks for help waits for none of these"


def test_it_is_installed_under_both_names() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"pagefleet", "kubectl-pagefleet"} == scripts.keys()
    for target in scripts.values():
        module, _, name = target.partition(":")
        assert getattr(importlib.import_module(module), name) is program.main


def test_it_tells_its_version(pagefleet: Shell) -> None:
    said = pagefleet("--version")
    assert (said.code, said.out) == (0, f"pagefleet {metadata.version('pagefleet')}\n")


def test_an_unknown_option_is_a_usage_error(pagefleet: Shell) -> None:
    said = pagefleet("plan", "--colour", "x.yaml")
    assert said.code == 2
    assert "--colour" in said.err


def test_a_reader_that_has_seen_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed() -> None:
        raise BrokenPipeError

    ended: list[int] = []
    monkeypatch.setattr(program, "app", closed)
    monkeypatch.setattr("os.dup2", lambda *_: ended.append(1))
    with pytest.raises(SystemExit) as exit_:
        program.main()
    assert (exit_.value.code, ended) == (0, [1])


def test_a_full_disk_behind_the_output_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(program, "app", full)
    with pytest.raises(SystemExit) as exit_:
        program.main()
    assert (exit_.value.code, capsys.readouterr().err) == (
        2,
        "standard output: the disk is full; write to another place\n",
    )
