"""The command line and what it says while it works."""

import os
import shutil
from pathlib import Path

import pytest

from e2e.cluster import host, prepare
from e2e.cluster.__main__ import main, parser, state_folder
from e2e.cluster.box import Box
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import API_SERVER_ONLY, CLUSTER, Layout
from e2e.cluster.progress import line


@pytest.mark.parametrize(
    "argv",
    [
        ["kubectl", "get", "pods", "-o", "wide", "--help"],
        ["helm", "install", "--set", "a=b", "-n", "x", "name", "chart"],
        ["kubectl", "exec", "pod", "--", "ls", "-l"],
    ],
)
def test_a_tools_own_arguments_reach_it_untouched(argv: list[str]) -> None:
    options, rest = parser().parse_known_args(argv)
    assert [options.command, *rest] == argv


def test_the_state_is_in_the_checkout_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEFLEET_STATE", raising=False)
    assert state_folder().name == ".state" and state_folder().is_absolute()
    monkeypatch.setenv("PAGEFLEET_STATE", "/elsewhere")
    assert state_folder() == Path("/elsewhere")


def test_a_relative_state_folder_is_refused() -> None:
    with pytest.raises(BoxError, match="absolute"):
        Box.at(Path("state"))


def test_a_box_with_nodes_and_one_without_share_a_state_folder(tmp_path: Path) -> None:
    assert Box.at(tmp_path, CLUSTER).folders.root != Box.at(tmp_path, API_SERVER_ONLY).folders.root


@pytest.mark.parametrize("nodes", [-1, 1, 4])
def test_a_number_of_nodes_that_cannot_be_is_refused_before_anything_starts(tmp_path: Path, nodes: int) -> None:
    box = Box.at(tmp_path, API_SERVER_ONLY)
    with pytest.raises(BoxError, match="nodes"):
        box.up(nodes)
    assert list(tmp_path.iterdir()) == []


def test_the_state_of_one_layout_is_refused_to_another(tmp_path: Path) -> None:
    box = Box.at(tmp_path, API_SERVER_ONLY)
    box.folders.root.mkdir()
    box.folders.layout.write_text(Layout(bridge=None, first_port=1024).dump())
    with pytest.raises(BoxError, match="another box"):
        box.up(0)


def test_a_box_that_was_never_started_is_dead_and_can_be_stopped(tmp_path: Path) -> None:
    box = Box.at(tmp_path, API_SERVER_ONLY)
    assert not box.alive()
    box.down()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_node_is_an_error_with_the_names_that_exist(tmp_path: Path) -> None:
    with pytest.raises(BoxError, match="node1 to node3"):
        Box.at(tmp_path).kill_node("node9")


def test_status_says_so_when_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGEFLEET_STATE", str(tmp_path))
    assert main(["status"]) == 1
    assert "not alive" in capsys.readouterr().out


def test_what_is_missing_is_named_by_its_package(tmp_path: Path) -> None:
    present = tmp_path / "there"
    present.touch()
    wanted = {str(present): "a", str(tmp_path / "absent"): "b", "no-such-program": "c", "sh": "d"}
    assert prepare.missing(wanted) == ["b", "c"]


@pytest.mark.parametrize(("apt", "uid", "words"), [(None, 0, "no apt-get"), ("/usr/bin/apt-get", 1000, "only root")])
def test_packages_that_cannot_be_installed_are_listed(
    monkeypatch: pytest.MonkeyPatch, apt: str | None, uid: int, words: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: apt if name == "apt-get" else None)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(BoxError, match=words) as refused:
        prepare.install_packages({"no-such-program": "its-package"}, print)
    assert "its-package" in str(refused.value)


def test_progress_tells_the_time_and_every_step() -> None:
    assert line(95.4, {"binaries": "compiling", "images": "packing"}) == "[  95 s] binaries: compiling; images: packing"


def test_unused_ports_are_a_run_that_can_be_bound() -> None:
    first = host.unused_first_port()
    assert 17000 <= first < 30000


def test_an_unknown_flag_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--nodse", "3"])
    assert "--nodse" in capsys.readouterr().err
