"""How many connections a process may have."""

import subprocess
import sys

import pytest

SHOWN = "import resource; from pagefleet_engine.api import open_files as o; "


@pytest.mark.parametrize(("soft", "most"), [(1024, 1024 - 128), (200, 100)])
def test_clients_may_take_all_but_a_reserve_and_half_of_few(soft: int, most: int) -> None:
    limit = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {soft})); "
    assert printed(SHOWN + limit + "print(o.most_connections())") == str(most)


def test_a_process_takes_as_many_files_as_it_may() -> None:
    limits = "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000)); o.raise_limit(); "
    assert printed(SHOWN + limits + "print(resource.getrlimit(resource.RLIMIT_NOFILE))") == "(1000, 1000)"


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
