"""What folders of tests that compute with torch have in common; their conftest imports it.

They compute on one thread: the machine is shared, and one thread is deterministic.
"""

from pathlib import Path

import pytest

TORCH_MARK = "pytest.mark.torch"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave torch test files unread under `-m "not torch"`: reading them would import torch."""
    unwanted = "not torch" in str(config.getoption("markexpr"))
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if unwanted and is_test and TORCH_MARK in collection_path.read_text() else None


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("torch") is not None:
        import torch

        torch.set_num_threads(1)
