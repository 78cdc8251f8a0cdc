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


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
