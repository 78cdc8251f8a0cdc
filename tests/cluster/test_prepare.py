"""What is told before anything is compiled."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.cluster import prepare
from e2e.cluster.errors import BoxError


def test_a_disk_that_is_too_small_is_told_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 << 30))
    with pytest.raises(
        BoxError, match=r"takes 8 GB of .*/there the first time, and 3\.0 GB are free: .*XDG_CACHE_HOME"
    ):
        prepare.require_space()


def test_a_disk_with_room_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=9 << 30))
    prepare.require_space()
