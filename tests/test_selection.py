"""Files that a run does not read have nothing for it."""

import sys
import tomllib
from pathlib import Path

import pytest

from tests.selection import MARKS, may_select

PLAIN = "def test_it() -> None: ..."
TORCH = "import torch\n\npytestmark = pytest.mark.torch\nOTHER = 1"
LISTED = "pytestmark = [\n    pytest.mark.torch,\n    pytest.mark.timeout(300),\n]\n"
MIXED = "@pytest.mark.torch\ndef test_it() -> None: ...\n\ndef test_other() -> None: ..."
ON_A_GPU = "pytestmark = pytest.mark.torch\n\n@pytest.mark.gpu\ndef test_it() -> None: ..."
APISERVER = "pytestmark = pytest.mark.apiserver"
UNIT = "not torch and not apiserver and not gpu"


@pytest.mark.parametrize(
    ("expression", "read"),
    [
        (UNIT, {PLAIN, MIXED}),
        ("torch and not gpu", {TORCH, LISTED, MIXED, ON_A_GPU}),
        ("gpu", {ON_A_GPU}),
        ("apiserver and not torch", {APISERVER}),
        ("torch or apiserver", {TORCH, LISTED, MIXED, ON_A_GPU, APISERVER}),
        ("asyncio", {PLAIN, TORCH, LISTED, MIXED, ON_A_GPU, APISERVER}),
        ("asyncio and torch", {TORCH, LISTED, MIXED, ON_A_GPU}),
    ],
)
def test_a_file_is_read_where_it_may_hold_what_is_asked_for(expression: str, read: set[str]) -> None:
    files = (PLAIN, TORCH, LISTED, MIXED, ON_A_GPU, APISERVER)
    assert {file for file in files if may_select(expression, file)} == read


def test_every_mark_of_ours_is_known() -> None:
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    marks = settings["tool"]["pytest"]["ini_options"]["markers"]
    assert {mark.partition(":")[0] for mark in marks} == set(MARKS)


def test_a_mark_that_only_begins_like_another_is_not_it() -> None:
    assert not may_select("gpu", "@pytest.mark.gpus\ndef test_it() -> None: ...")


def test_a_run_without_torch_reads_no_file_that_imports_it(request: pytest.FixtureRequest) -> None:
    if "not torch" in str(request.config.getoption("markexpr")):
        assert "torch" not in sys.modules, "a test file without pytest.mark.torch, or what it tests, imports torch"
