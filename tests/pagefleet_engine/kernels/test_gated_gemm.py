"""The product with the gated activation inside agrees with a product and an activation apart."""

from types import SimpleNamespace

import pytest
import torch

from pagefleet_engine.kernels import activation, gated_gemm
from pagefleet_engine.kernels.activation import Activation

pytestmark = pytest.mark.torch


def apart(hidden: torch.Tensor, weight: torch.Tensor, kind: Activation) -> torch.Tensor:
    return activation.gated((hidden.float() @ weight.float().T).to(hidden.dtype), kind)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 17, 64, 90, 100, 130, 180, 256, 384, 1000, 8192])
@pytest.mark.parametrize(("inner", "width"), [(14336, 4096), (3000, 1024), (104, 200)])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_every_number_of_rows_is_right(device: str, kind: Activation, rows: int, inner: int, width: int) -> None:
    torch.manual_seed(rows)
    hidden = torch.randn(rows, width, device=device).bfloat16()
    weight = (torch.randn(2 * inner, width, device=device) * 0.02).bfloat16()
    wanted = apart(hidden, weight, kind).float()  # the kernel before may not be the one that writes the weight
    found = gated_gemm.gated_product(hidden, weight, kind).float()
    assert (found - wanted).norm() < 1e-2 * wanted.norm()


def test_only_16_bit_rows_on_16_bytes_pay(device: str) -> None:
    half = torch.empty(2 * 14336, 24, device=device).half()
    assert gated_gemm.pays(half[:8], half) == (device == "cuda" and torch.cuda.get_device_capability()[0] == 9)
    assert not gated_gemm.pays(half[:8].float(), half.float())
    assert not gated_gemm.pays(half[:8, 1:17], half[:, :16])
    assert not gated_gemm.pays(half[:8], half.bfloat16())


@pytest.mark.parametrize(("inner", "pays"), [(10920, True), (10922, False), (10928, True)])
def test_a_product_whose_rows_do_not_lie_on_16_bytes_does_not_pay(
    monkeypatch: pytest.MonkeyPatch, inner: int, pays: bool
) -> None:
    hopper = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: hopper)
    weight = torch.empty(2 * inner, 24, dtype=torch.half, device="meta")
    assert gated_gemm.pays(weight[:8], weight) == pays


@pytest.mark.parametrize(
    ("rows", "inner", "faster"),
    [
        (0, 14336, False),
        (1, 14336, True),
        (128, 14336, True),
        (192, 14336, True),
        (200, 14336, False),
        (240, 14336, False),
        (256, 14336, True),
        (300, 14336, False),
        (400, 14336, True),
        (8, 3072, False),
        (2048, 3072, True),
    ],
)
def test_it_is_faster_where_its_tiles_fill_the_gpu(rows: int, inner: int, faster: bool) -> None:
    assert gated_gemm.faster(rows, inner, 132) == faster
