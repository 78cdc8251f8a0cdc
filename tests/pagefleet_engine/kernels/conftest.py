"""Kernel tests run on the GPU where there is one, else in Triton's interpreter on small shapes."""

import os
from pathlib import Path

import pytest

from tests.pagefleet_engine.interpreter import replace_the_language_once
from tests.pagefleet_engine.torch_tests import one_thread

__all__ = ["device", "one_thread"]

if not Path("/dev/nvidiactl").exists():
    # Triton reads it where a kernel is decorated, so it is set before any test module is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def device() -> str:
    """Where tensors of a kernel test live."""
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@pytest.fixture(autouse=True)
def interpreter(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("torch") is not None:
        replace_the_language_once()


@pytest.fixture(autouse=True)
def gpu_where_it_is_needed(request: pytest.FixtureRequest, device: str) -> None:
    if device == "cpu" and request.node.get_closest_marker("gpu") is not None:
        pytest.skip("no NVIDIA GPU here")
