"""The cluster in a box itself, as a second box beside any that runs: it starts, runs pods, recovers, leaves nothing."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import configuration, host
from e2e.cluster.box import Box
from e2e.cluster.configuration import PAUSE_IMAGE
from e2e.cluster.errors import BoxError
from e2e.cluster.layout import SELF_TEST
from e2e.footprint import Footprint

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

BOTH = ["node1=True", "node2=True"]


@pytest.fixture(scope="module")
def began() -> Footprint:
    return Footprint.of_host()


@pytest.fixture(scope="module")
def running(began: Footprint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """Two nodes, for the tests that leave them as well as they were."""
    box = Box.at(tmp_path_factory.mktemp("box"), SELF_TEST)
    box.up(2)
    yield box
    box.down()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """One that nobody has started."""
    box = Box.at(tmp_path, SELF_TEST)
    yield box
    box.down()


def run_pod(box: Box, node: str) -> None:
    name = f"pause-on-{node}"
    choice = f'--overrides={{"spec":{{"nodeName":"{node}","terminationGracePeriodSeconds":1}}}}'
    created = box.kubectl("run", name, f"--image={PAUSE_IMAGE}", "--image-pull-policy=IfNotPresent", choice)
    assert created.returncode == 0, created.stderr
    ready = box.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
    assert ready.returncode == 0, ready.stderr


def ready_nodes(box: Box) -> list[str]:
    status = "{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=='Ready')].status} {end}"
    return box.kubectl("get", "nodes", f"--output=jsonpath={status}").stdout.split()


def commands_below(state: Path) -> list[str]:
    """The command lines of all processes that name the state folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:  # it ended meanwhile
            continue
        if str(state) in words:
            found.append(words)
    return found


def test_a_cluster_runs_pods_on_both_nodes(running: Box) -> None:
    assert ready_nodes(running) == BOTH
    for node in running.nodes():
        run_pod(running, node)
    assert commands_below(running.folders.root)


def test_a_running_cluster_is_left_as_it_is(running: Box) -> None:
    before = {name: running.processes.recorded(name) for name in running.processes.names()}
    running.up(2)
    assert {name: running.processes.recorded(name) for name in running.processes.names()} == before


def test_another_checkouts_cluster_is_neither_joined_nor_taken_apart(running: Box, tmp_path: Path) -> None:
    other = Box.at(tmp_path, SELF_TEST)
    with pytest.raises(BoxError, match=str(running.folders.root)):
        other.up(1)
    other.folders.root.mkdir(parents=True)
    other.down()
    assert ready_nodes(running) == BOTH


def test_a_lost_node_returns_and_so_does_a_stopped_api_server(running: Box) -> None:
    running.kill_node("node2")
    assert running.nodes() == ["node1"]
    running.start_node("node2")
    assert running.nodes() == ["node1", "node2"]
    assert running.node_exec("node2", ["hostname"]).stdout == "node2\n"
    running.stop_apiserver()
    assert running.kubectl("get", "nodes", "--request-timeout=2s").returncode != 0
    running.start_apiserver()
    assert ready_nodes(running) == BOTH


def test_a_cluster_whose_processes_were_all_killed_starts_over_what_is_left(running: Box) -> None:
    for name in running.processes.names():
        record = running.processes.running(name)
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
    assert not running.alive()
    running.up(2)
    assert ready_nodes(running) == BOTH
    ready = running.kubectl("wait", "pod/pause-on-node2", "--for=condition=Ready", "--timeout=60s")
    assert ready.returncode == 0, ready.stderr


def test_a_cluster_comes_back_after_a_reboot_took_its_interfaces_and_control_groups(running: Box) -> None:
    running.processes.kill(*running.processes.names())
    host.disconnect(running.layout)
    host.remove_cgroup(running.layout.cgroup)
    running.up(2)
    assert ready_nodes(running) == BOTH


def test_a_cluster_that_is_stopped_leaves_nothing_behind(running: Box, began: Footprint) -> None:
    running.down()
    after = Footprint.of_host()
    assert began.left_by(running, after) == []
    assert began.sysctls == after.sysctls
    assert commands_below(running.folders.root.parent) == []
    assert not running.folders.root.exists()


def kill_first(needle: str, state: Path, stop: threading.Event) -> None:
    """Kill the first process seen that has both in its command line, as soon as it is there."""
    while not stop.is_set():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode(errors="replace")
                if needle in words and f"{state}/" in words:
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    return
        time.sleep(0.01)


def test_a_node_whose_programs_die_at_their_start_comes_up_all_the_same(box: Box) -> None:
    stop = threading.Event()
    needles = ("containerd\0--config", "hyperkube\0kubelet", "hyperkube\0kube-proxy")
    killers = [threading.Thread(target=kill_first, args=(needle, box.folders.root, stop)) for needle in needles]
    for killer in killers:
        killer.start()
    try:
        box.up(1)
    finally:
        stop.set()
        for killer in killers:
            killer.join()
    assert ready_nodes(box) == ["node1=True"]
    said = (box.folders.log / "node1.log").read_text()
    for program in ("containerd", "kubelet", "kube-proxy"):
        assert f"node1-{program} ended with status -9" in said


def test_a_node_that_cannot_start_says_why(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {**configuration.kubelet(box.layout.node("node1"), box.folders), "failSwapOn": "maybe"}
    monkeypatch.setattr(configuration, "kubelet", lambda _node, _folders: broken)
    with pytest.raises(BoxError, match=r"(?s)node1-kubelet ended 6 times: the node ends.*failed to decode"):
        box.up(1)
