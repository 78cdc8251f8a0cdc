"""What folders of tests that compute with torch have in common; their conftest imports it.

They compute on one thread: the machine is shared, and one thread is deterministic.
"""

import pytest


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("torch") is not None:
        import torch

        torch.set_num_threads(1)
