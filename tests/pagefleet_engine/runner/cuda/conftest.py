"""The GPU's runner is tested on the GPU where there is one, else in Triton's interpreter with the host as device."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.pagefleet_engine.interpreter import replace_the_language_once

if not Path("/dev/nvidiactl").exists():
    # Triton reads it where a kernel is decorated, so it is set before any test module is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


class _NoEvent:
    """On the host everything is done when the call returns."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


def stand_in_for_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """What only a GPU has, on the host; layers are cut into few programs, each of which takes the interpreter long."""
    import torch

    from pagefleet_engine.kernels import gemv

    replace_the_language_once()
    cut = gemv.choose
    patch.setattr(gemv, "choose", lambda *layer, **kind: cut(*layer, **kind)._replace(block_out=64, block_width=64))
    properties = SimpleNamespace(multi_processor_count=2)
    patch.setattr(torch.cuda, "Event", _NoEvent)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    patch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the runner's tensors live; what only a GPU has is stood in for on the host."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield "cuda"
        return
    with pytest.MonkeyPatch.context() as patch:
        stand_in_for_a_gpu(patch)
        yield "cpu"
