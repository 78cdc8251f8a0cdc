"""A process is known by more than its number."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.cluster.errors import BoxError
from e2e.cluster.processes import Processes, ProcessRecord, children, gone, observe, parse_stat

SLEEP = ["sleep", "60"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    table = Processes(tmp_path / "processes", tmp_path / "log")
    yield table
    table.kill(*table.names())


@given(
    st.builds(
        ProcessRecord,
        st.integers(1, 4_000_000),
        st.uuids().map(str),
        st.integers(0, 2**63),
        st.lists(st.text()).map(tuple),
    )
)
def test_a_record_survives_its_way_to_disk_and_back(record: ProcessRecord) -> None:
    assert ProcessRecord.parse(record.dump()) == record


@pytest.mark.parametrize("name", ["sleep", "a b", "tricky) R 1", "((("])
def test_the_state_is_found_behind_any_program_name(name: str) -> None:
    fields = ["S", "1", *["0"] * 17, "4242", "7"]
    assert parse_stat(f"12 ({name}) {' '.join(fields)}\n") == ("S", 4242)


def test_a_started_process_is_running_until_it_is_killed(processes: Processes) -> None:
    pid = processes.start("sleeper", SLEEP)
    record = processes.running("sleeper")
    assert record is not None
    assert (record.pid, record.argv) == (pid, tuple(SLEEP))
    assert os.getsid(pid) == pid
    processes.kill("sleeper")
    assert observe(pid) is None
    assert processes.names() == []


def test_what_outlives_a_command_holds_no_lock_of_its_caller(processes: Processes, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock, (tmp_path / "lock").open("w") as another:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        processes.start("sleeper", SLEEP)
        lock.close()
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where the sleeper still holds it


def test_a_living_record_is_never_overwritten(processes: Processes) -> None:
    processes.start("sleeper", SLEEP)
    with pytest.raises(BoxError, match="runs already"):
        processes.start("sleeper", SLEEP)


@pytest.mark.parametrize(
    "change", [{"start_ticks": 1}, {"boot": "another"}, {"argv": ("sleep", "61")}], ids=["start time", "boot", "argv"]
)
def test_a_number_that_now_belongs_to_another_process_is_not_signalled(
    processes: Processes, tmp_path: Path, change: dict[str, object]
) -> None:
    with subprocess.Popen(SLEEP) as bystander:
        seen = observe(bystander.pid)
        while seen is None or seen.argv != tuple(SLEEP):
            seen = observe(bystander.pid)
        (tmp_path / "processes").mkdir()
        (tmp_path / "processes" / "old").write_text(seen._replace(**change).dump())  # type: ignore[arg-type]
        assert processes.running("old") is None
        processes.kill("old")
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize("text", ["", "12", '{"pid": 1}', "[]"])
def test_a_broken_record_counts_as_nothing_running(processes: Processes, tmp_path: Path, text: str) -> None:
    (tmp_path / "processes").mkdir()
    (tmp_path / "processes" / "broken").write_text(text)
    assert processes.running("broken") is None
    processes.start("broken", SLEEP)
    assert processes.running("broken") is not None


def test_a_process_that_ended_by_itself_is_not_running_and_its_words_are_kept(processes: Processes) -> None:
    processes.start("talker", [sys.executable, "-I", "-S", "-c", "import time; print('goodbye'); time.sleep(0.2)"])
    deadline_s = time.monotonic() + 10
    while processes.running("talker") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert processes.running("talker") is None
    assert processes.log_tail("talker") == "goodbye"


def test_a_program_that_does_not_exist_is_an_error_with_its_name(processes: Processes) -> None:
    with pytest.raises(BoxError, match="no-such-program"):
        processes.start("missing", ["no-such-program"])


def test_a_process_is_gone_when_its_number_is_free_or_anothers(processes: Processes) -> None:
    pid = processes.start("sleeper", SLEEP)
    record = processes.running("sleeper")
    assert record is not None
    assert not gone(record)
    assert gone(record._replace(start_ticks=record.start_ticks + 1))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert gone(record)


def test_children_of_a_process_that_is_gone_are_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert children(process.pid) == []
