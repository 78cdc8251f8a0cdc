"""How many connections a process may have."""

import resource
import subprocess
import sys

import pytest

from pagefleet_engine.api import open_files

SHOWN = "import resource; from pagefleet_engine.api import open_files as o; "


@pytest.mark.parametrize(
    ("soft", "sequences", "most"),
    [(1024, 10, 896), (200, 10, 100), (500_000, 10, 4096), (500_000, 2000, 8000), (resource.RLIM_INFINITY, 10, 4096)],
)
def test_clients_may_take_all_but_a_reserve_and_no_more_than_serve_a_full_queue(
    monkeypatch: pytest.MonkeyPatch, soft: int, sequences: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert open_files.most_connections(sequences) == most


def test_a_process_takes_as_many_files_as_it_may() -> None:
    limits = "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000)); o.raise_limit(); "
    assert printed(SHOWN + limits + "print(resource.getrlimit(resource.RLIMIT_NOFILE))") == "(1000, 1000)"


@pytest.mark.parametrize(("most_it_takes", "given"), [(10_240, [(10_240, -1)]), (0, [])])
def test_a_process_without_a_limit_takes_what_it_is_given_and_starts_without(
    monkeypatch: pytest.MonkeyPatch, most_it_takes: int, given: list[tuple[int, int]]
) -> None:
    found = []

    def as_on_macos(_: int, limits: tuple[int, int]) -> None:
        if not 0 <= limits[0] <= most_it_takes:
            raise ValueError("current limit exceeds maximum limit")
        found.append(limits)

    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, -1))
    monkeypatch.setattr(resource, "setrlimit", as_on_macos)
    open_files.raise_limit()
    assert found == given


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
