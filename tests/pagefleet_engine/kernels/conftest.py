"""Kernel tests run on the GPU where there is one, else in Triton's interpreter on small shapes."""

import os
from pathlib import Path

import pytest

TORCH_MARK = "pytest.mark.torch"

if not Path("/dev/nvidiactl").exists():
    # Triton reads it where a kernel is decorated, so it is set before any test module is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


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


@pytest.fixture
def device() -> str:
    """Where tensors of a kernel test live."""
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@pytest.fixture(autouse=True)
def gpu_where_it_is_needed(request: pytest.FixtureRequest, device: str) -> None:
    if device == "cpu" and request.node.get_closest_marker("gpu") is not None:
        pytest.skip("no NVIDIA GPU here")
