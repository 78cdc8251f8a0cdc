"""The floors of the tree's style that no linter here holds."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("crds", "operator", "engine_image", "dashboards", "docs", "e2e", "bench")
MAX_FUNCTION_LINES = 40
MAX_LAUNCHER_LINES = 60
"""A kernel's launcher passes a line of parameters for each thing that the kernel reads."""
MAX_FILE_LINES = 300

listed = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard", *FOLDERS], check=True, cwd=ROOT, capture_output=True, text=True
)
SOURCES = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(".py") and (ROOT / name).exists()]


def test_there_are_sources() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(source: Path) -> None:
    text = source.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            if any("triton.jit" in ast.unparse(decorator) for decorator in node.decorator_list):
                continue  # a GPU kernel is one piece
            limit = MAX_LAUNCHER_LINES if "kernels" in source.parts else MAX_FUNCTION_LINES
            assert node.end_lineno - node.lineno + 1 <= limit, node.name


def test_no_package_hides_a_standard_module() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
