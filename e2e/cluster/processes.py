"""Processes that outlive the command that started them, each known by more than a number.

A pid alone may belong to someone else after a reboot or a wrap-around: a record also holds the boot, the start time
and the command line, and nothing is signalled unless all of them still fit.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from e2e.cluster.errors import BoxError


class ProcessRecord(NamedTuple):
    """One process, once and for all: `start_ticks` is field 22 of /proc/PID/stat, clock ticks since the boot."""

    pid: int
    boot: str
    start_ticks: int
    argv: tuple[str, ...]

    def dump(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def parse(cls, text: str) -> "ProcessRecord":
        """The inverse of `dump`; ValueError, KeyError or TypeError when the text is something else."""
        fields = json.loads(text)
        return cls(int(fields["pid"]), fields["boot"], int(fields["start_ticks"]), tuple(fields["argv"]))


def parse_stat(text: str) -> tuple[str, int]:
    """(state letter, start time in ticks) from the text of /proc/PID/stat, whose second field may hold anything."""
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[19])


def observe(pid: int) -> ProcessRecord | None:
    """The process that runs under `pid` now; None when there is none or only its exit status is left."""
    folder = Path("/proc", str(pid))
    try:
        state, start_ticks = parse_stat((folder / "stat").read_text())
        argv = (folder / "cmdline").read_bytes().decode().split("\0")[:-1]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else ProcessRecord(pid, boot, start_ticks, tuple(argv))


def gone(record: ProcessRecord) -> bool:
    """Whether nothing of the process holds a port or a file any more.

    A program that was killed is a zombie as soon as its first thread has ended, its other threads maybe still ending.
    """
    folder = Path("/proc", str(record.pid))
    try:
        state, start_ticks = parse_stat((folder / "stat").read_text())
        threads = len(list((folder / "task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return True
    return start_ticks != record.start_ticks or (state in "ZX" and threads <= 1)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _reap(pid: int) -> None:
    """Takes the exit status of a child of ours; another's child is another's business."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _wait_until_gone(ending: Sequence[ProcessRecord], timeout_s: float = 10) -> None:
    deadline_s = time.monotonic() + timeout_s
    while ending := [record for record in ending if not gone(record)]:
        if time.monotonic() > deadline_s:
            raise BoxError(f"still running after SIGKILL: {', '.join(record.argv[0] for record in ending)}")
        for record in ending:
            _reap(record.pid)
        time.sleep(0.01)


class Processes:
    """The recorded processes of one box: a file for each name."""

    def __init__(self, records: Path, logs: Path) -> None:
        self._records, self._logs = records, logs

    def names(self) -> list[str]:
        return sorted(path.name for path in self._records.glob("*"))

    def recorded(self, name: str) -> ProcessRecord | None:
        try:
            return ProcessRecord.parse((self._records / name).read_text())
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def running(self, name: str) -> ProcessRecord | None:
        """The recorded process, if it is still exactly that process."""
        record = self.recorded(name)
        if record is None:
            return None
        _reap(record.pid)
        return record if observe(record.pid) == record else None

    def start(
        self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None, stdin: int | None = None
    ) -> int:
        """Start `argv` in a session of its own, its output appended to the log; its pid.

        Raises:
            BoxError: it runs already (a living record is never overwritten), or it cannot be started.
        """
        if self.running(name):
            raise BoxError(f"{name} runs already")
        if before := self.recorded(name):
            _wait_until_gone([before])  # one that somebody killed may still hold its port
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = os.open(self._logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, null if stdin is None else stdin, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        actions += [(os.POSIX_SPAWN_CLOSE, number) for number in _handed_down()]
        try:
            pid = os.posix_spawnp(argv[0], list(argv), env or os.environ, file_actions=actions, setsid=True)
        except OSError as error:
            raise BoxError(f"{name}: {argv[0]} does not start: {error}") from error
        finally:
            os.close(log)
            os.close(null)
        record = observe(pid)
        while record is not None and record.argv != tuple(argv):
            time.sleep(0.001)  # the kernel fills the command line in a moment after the spawn returned
            record = observe(pid)
        if record is None:
            raise BoxError(f"{name} ended at once:\n{self.log_tail(name)}")
        partial = self._logs / f"{name}.record"
        partial.write_text(record.dump())
        partial.replace(self._records / name)  # whole or not at all: it is all that leads back to the process
        return pid

    def kill(self, *names: str) -> None:
        """End the recorded processes, all at once, and wait until nothing of them is left."""
        _wait_until_gone([record for name in names if (record := self._signal(name, signal.SIGKILL))])
        for name in names:
            (self._records / name).unlink(missing_ok=True)

    def _signal(self, name: str, number: signal.Signals) -> ProcessRecord | None:
        """The process, if it ran; the descriptor keeps its number from being given to another in between."""
        record = self.recorded(name)
        if record is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(record.pid)
            try:
                if self.running(name):
                    signal.pidfd_send_signal(descriptor, number)
                    return record
            finally:
                os.close(descriptor)
        return None

    def log_tail(self, name: str, lines: int = 8) -> str:
        try:
            text = (self._logs / f"{name}.log").read_text(errors="replace")
            return "\n".join(line[:600] for line in text.splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log)"


def _handed_down() -> Iterator[int]:
    """Descriptors that whoever called this command left open, such as the lock of `flock FILE make demo`: what outlives
    the command must not hold them."""
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            if number > 2 and os.get_inheritable(number):
                yield number
