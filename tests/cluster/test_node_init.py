"""A node keeps its programs running, as the service manager of any other node does."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from e2e.cluster import node_init

# it waits for every child of its process, so it gets a process of its own; orphans come to it as in a pid namespace
SUPERVISE = """
import ctypes, json, sys
from e2e.cluster import node_init
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
programs, logs, patience = json.loads(sys.argv[1])
node_init.supervise([node_init.Program(*program) for program in programs], logs, node_init.Patience(*patience))
"""
Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a node's first process over shell scripts, each (name, script, the socket it needs)."""

    def begin(
        *programs: tuple[str, str] | tuple[str, str, str], patience: Sequence[float] = (2, 0.05, 60)
    ) -> subprocess.Popen[str]:
        listed = [(name, ["sh", "-c", script], *needs) for name, script, *needs in programs]
        argument = json.dumps([listed, str(tmp_path), patience])
        command = [sys.executable, "-c", SUPERVISE, argument]
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True))
        return begun[-1]

    begun: list[subprocess.Popen[str]] = []
    yield begin
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def words(process: subprocess.Popen[str]) -> str:
    """All that it printed until its end."""
    return process.communicate(timeout=20)[0]


def test_a_program_that_ends_is_started_again_until_it_ended_too_often(begin: Begin, tmp_path: Path) -> None:
    said = words(begin(("kubelet", "echo life; exit 3")))
    assert said.count("kubelet ended with status 3") == 3
    assert said.endswith("kubelet ended 3 times: the node ends\n")
    assert (tmp_path / "kubelet.log").read_text() == "life\n" * 3


def test_a_killed_program_is_told_by_its_signal(begin: Begin) -> None:
    assert "proxy ended with status -9" in words(begin(("proxy", "kill -9 $$"), patience=(0, 0, 60)))


def test_whoever_ran_steadily_has_all_its_restarts_again(begin: Begin) -> None:
    node = begin(("kubelet", "sleep 0.2; exit 1"), patience=(1, 0.01, 0.1))
    assert node.stdout is not None
    for _ in range(3):
        assert node.stdout.readline().startswith("kubelet ended with status 1 ")


def test_a_program_waits_for_the_socket_that_it_needs(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "containerd.sock"
    listen = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('{path}'); s.listen(); time.sleep(60)"
    late = f'sleep 0.3; exec {sys.executable} -c "{listen}"'
    said = words(begin(("containerd", late), ("kubelet", f"test -S {path} || exit 9", str(path)), patience=(0, 0, 60)))
    assert said.startswith("kubelet ended with status 0")


def test_an_orphan_is_reaped_and_nobody_is_started_for_it(begin: Begin, tmp_path: Path) -> None:
    node = begin(("runtime", f"(sleep 0.1 & echo $! > {tmp_path}/orphan); exec sleep 60"))
    orphan, deadline_s = tmp_path / "orphan", time.monotonic() + 20
    while not (orphan.exists() and (number := orphan.read_text().strip())) or Path("/proc", number).exists():
        assert time.monotonic() < deadline_s, "the orphan is still there"
        time.sleep(0.05)
    node.kill()
    assert words(node) == ""


def test_no_signal_is_held_back_from_a_program(begin: Begin, tmp_path: Path) -> None:
    words(begin(("shell", "grep SigBlk /proc/self/status"), patience=(0, 0, 60)))
    assert (tmp_path / "shell.log").read_text().split() == ["SigBlk:", "0" * 16]


def test_a_socket_that_nobody_listens_on_does_not_answer(tmp_path: Path) -> None:
    assert not node_init.answers(str(tmp_path / "none"))
