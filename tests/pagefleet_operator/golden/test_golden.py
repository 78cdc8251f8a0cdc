"""Every example renders to exactly the files beside this one. Rewrite: `python -m tests.pagefleet_operator.golden`."""

from pathlib import Path

import pytest

from tests.pagefleet_operator.golden.__main__ import EXAMPLES, GOLDEN, rendered

_EXAMPLES = sorted(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda path: path.stem)
def test_an_example_renders_to_its_golden_files(example: Path) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in (GOLDEN / example.stem).glob("*.yaml")}
    assert rendered(example) == kept


def test_there_are_golden_files_for_every_example_and_for_nothing_else() -> None:
    folders = {path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {example.stem for example in _EXAMPLES}
