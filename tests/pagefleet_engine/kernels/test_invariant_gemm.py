"""The invariant product is a linear layer, and a row's bits do not depend on the rows beside it."""

import pytest
import torch

from pagefleet_engine.kernels.invariant_gemm import Tile, linear

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("rows", "outputs", "width"), [(1, 40, 48), (7, 64, 100), (70, 33, 64)])
def test_rows_go_through_the_layer(device: str, rows: int, outputs: int, width: int) -> None:
    torch.manual_seed(rows)
    hidden = torch.randn(rows, width + 8, device=device)[:, :width]
    weight, bias = torch.randn(outputs, width, device=device), torch.randn(outputs, device=device)
    torch.testing.assert_close(linear(hidden, weight, bias), hidden @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_tiles_cover_every_row_and_output_once(device: str) -> None:
    hidden, weight = torch.randn(100, 32, device=device), torch.randn(50, 32, device=device)
    found = linear(hidden, weight, tile=Tile(16, 16, 16, 4, 2, group=3))
    torch.testing.assert_close(found, hidden @ weight.T, rtol=1e-4, atol=1e-4)


def test_no_rows_are_no_work(device: str) -> None:
    assert linear(torch.empty(0, 8, device=device), torch.ones(3, 8, device=device)).shape == (0, 3)


@pytest.mark.gpu
@pytest.mark.parametrize(("outputs", "width"), [(6144, 4096), (4096, 14336), (1024, 3072), (151936, 1024), (1000, 200)])
def test_a_rows_bits_are_the_same_among_any_rows(device: str, outputs: int, width: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(600, width, device=device).bfloat16()
    weight = (torch.randn(outputs, width, device=device) / width**0.5).bfloat16()
    everything = linear(hidden, weight)
    torch.testing.assert_close(everything, hidden @ weight.T, rtol=0.02, atol=0.02)
    for rows in (1, 7, 64, 65, 256, 300):
        assert torch.equal(linear(hidden[:rows], weight), everything[:rows]), rows
