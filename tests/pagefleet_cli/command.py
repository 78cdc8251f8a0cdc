"""The program run in this process, as a shell would see it."""

import sys
from typing import NamedTuple

import pytest

from pagefleet_cli.program import main


class Said(NamedTuple):
    """What a run left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


class Shell:
    """Runs `pagefleet` with arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["pagefleet", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = self._capsys.readouterr()
        code = exit_.value.code
        return Said(code if isinstance(code, int) else 0, out, err)
