"""A run reads only files in which it may select a test."""

from pathlib import Path

import pytest

from tests.selection import may_select


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave test files unread of which `-m` selects nothing."""
    expression = str(config.getoption("markexpr"))
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if expression and is_test and not may_select(expression, collection_path.read_text()) else None
