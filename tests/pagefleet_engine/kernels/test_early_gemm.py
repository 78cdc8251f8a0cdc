"""Products of few rows in parts: their sum is the product, and they are used where they gain."""

from types import SimpleNamespace

import pytest
import torch

from pagefleet_engine.kernels import early_gemm

pytestmark = pytest.mark.torch


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 17, 33, 64, 65, 96, 100, 128, 129, 160, 190, 192])
@pytest.mark.parametrize(("outputs", "width"), [(6144, 4096), (4096, 14336), (1000, 576), (24, 72)])
def test_the_parts_add_up_to_the_product(device: str, rows: int, outputs: int, width: int) -> None:
    torch.manual_seed(rows)
    hidden = torch.randn(rows, width, device=device).bfloat16()
    weight = (torch.randn(outputs, width, device=device) * 0.02).bfloat16()
    wanted = hidden.float() @ weight.float().T  # the kernel before may not be the one that writes the weight
    parts = early_gemm.partial_product(hidden, weight)
    assert (parts.sum(0) - wanted).norm() < 2e-3 * wanted.norm()
    assert torch.equal(parts, early_gemm.partial_product(hidden, weight))


@pytest.mark.gpu
def test_rows_that_the_kernel_before_writes_are_waited_for(device: str) -> None:
    hidden = torch.zeros(16, 4096, device=device, dtype=torch.bfloat16)
    weight = torch.full((4096, 4096), 1.0, device=device, dtype=torch.bfloat16)
    graph, found = torch.cuda.CUDAGraph(), []
    early_gemm.partial_product(hidden, weight)
    with torch.cuda.graph(graph):
        for number in range(1, 9):
            hidden.fill_(number)
            found.append(early_gemm.partial_product(hidden, weight))
    for _ in range(20):
        graph.replay()
    for number, parts in enumerate(found, 1):
        assert bool((parts.sum(0) == 4096.0 * number).all())


@pytest.mark.parametrize(
    ("rows", "outputs", "width", "pays"),
    [
        (0, 4096, 4096, False),
        (1, 4096, 4096, True),
        (128, 6144, 4096, True),
        (129, 6144, 4096, False),
        (192, 4096, 14336, True),
        (193, 4096, 14336, False),
        (8, 4096, 1024, False),
        (8, 4096, 4100, False),
    ],
)
def test_they_are_used_where_there_is_enough_to_bring_ahead(
    monkeypatch: pytest.MonkeyPatch, rows: int, outputs: int, width: int, pays: bool
) -> None:
    hopper = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: hopper)
    weight = torch.empty(outputs, width, dtype=torch.half, device="meta")
    for capability, expected in (((8, 0), False), ((9, 0), pays), ((10, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert early_gemm.pays(rows, weight) == expected
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert not early_gemm.pays(rows, weight.float())


@pytest.mark.parametrize(
    ("outputs", "width", "parts"), [(6144, 4096, 2), (4096, 14336, 4), (17000, 4096, 1), (128, 4096, 8), (128, 300, 2)]
)
def test_every_part_has_something_of_the_width(
    monkeypatch: pytest.MonkeyPatch, outputs: int, width: int, parts: int
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    assert early_gemm._parts(torch.empty(outputs, width, dtype=torch.half, device="meta")) == parts


@pytest.mark.gpu
def test_a_part_without_a_share_writes_zeros_in_its_turn(device: str) -> None:
    hidden = torch.randn(16, 64, device=device).bfloat16()
    weight = torch.randn(128, 64, device=device).bfloat16()
    wanted, graph, room = hidden.float() @ weight.float().T, torch.cuda.CUDAGraph(), []
    early_gemm.partial_product(hidden, weight, parts=8)
    with torch.cuda.graph(graph):
        for _ in range(8):
            # the parts' memory is what the long kernel before them still writes
            busy = torch.ones(8, 16, 128, device=device)
            for _ in range(20):
                busy.mul_(1.5)
            del busy
            room.append(early_gemm.partial_product(hidden, weight, parts=8).sum(0))
    for _ in range(20):
        graph.replay()
    assert all((found - wanted).norm() < 2e-3 * wanted.norm() for found in room)


def test_the_host_never_uses_them() -> None:
    assert not early_gemm.pays(8, torch.empty(4096, 4096, dtype=torch.half))
