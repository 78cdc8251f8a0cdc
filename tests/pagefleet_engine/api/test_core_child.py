"""The core process at the end of the API process."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pagefleet_api.launch import Launch
from pagefleet_engine.api import core_child


class Stuck:
    """A process in a driver that does not return: signals change nothing."""

    pid = 1

    def __init__(self, *args: Any, **options: Any) -> None:
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "waits for ever"
        raise subprocess.TimeoutExpired("core", timeout)


def test_a_core_that_does_not_even_die_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Stuck)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = core_child.CoreChild(Launch.parse(["--model", "file:///m"]))
    child.end()
    assert isinstance(child._process, Stuck) and child._process.killed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("long", [True, False])
def test_where_no_socket_can_be_made_the_way_out_is_told_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    folder = tmp_path / ("x" * 100 if long else "not-there")
    if long:
        folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(OSError, match=r"no socket can be made in .* as TMPDIR"):
        core_child.CoreChild(Launch.parse(["--model", "file:///m"]))
    assert not list(tmp_path.glob("*/*"))
