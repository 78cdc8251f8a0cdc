"""A run reads only files in which it may select a test, and looks for no garbage in what stays."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.selection import may_select


def pytest_configure() -> None:
    """A slow moment of the machine is no failure of a property."""
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay for the whole run; to go through them again and again takes as long as to import them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave test files unread of which `-m` selects nothing."""
    expression = str(config.getoption("markexpr"))
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if expression and is_test and not may_select(expression, collection_path.read_text()) else None
