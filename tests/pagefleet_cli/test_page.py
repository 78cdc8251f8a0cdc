"""What docs/planning.md shows is what the program prints."""

import re
from pathlib import Path

import pytest

from tests.pagefleet_cli.command import Shell

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planning.md"


def test_the_example_on_the_page_prints_what_the_page_says(
    pagefleet: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    config = re.search(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    example = re.search(r"^```console\n\$ pagefleet (.*?)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert config is not None
    assert example is not None
    (tmp_path / "config.json").write_text(config[1])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert pagefleet(*example[1].split()).out == example[2]
