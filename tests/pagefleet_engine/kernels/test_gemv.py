"""Fused linear layers of a few rows agree with the separate operations in float32."""

import pytest
import torch

from pagefleet_engine.kernels import gemv
from pagefleet_engine.kernels.activation import Activation

pytestmark = pytest.mark.torch

CONFIGS = [gemv.Config(False, 4, 64, 4, 1), gemv.Config(False, 2, 32, 2, 3), gemv.Config(True, 8, 32, 4, 3)]
EPS = 1e-5


class Case:
    """A layer and its inputs: bfloat16, but float32 for matrix products in the interpreter, which lacks others."""

    def __init__(self, device: str, rows: int, outputs: int, width: int) -> None:
        torch.manual_seed(outputs)
        dtype = torch.float32 if rows > 1 and device == "cpu" else torch.bfloat16

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=device).to(dtype)

        self.hidden = random(rows, width + 16)[:, :width]
        self.weight = (random(outputs, width) / width**0.5).contiguous()
        self.bias = random(outputs)
        self.norm_weight = random(width)
        self.residual = random(rows, outputs)

    def normed(self, unit_offset: bool) -> torch.Tensor:
        wide = self.hidden.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        return scaled * (self.norm_weight.float() + float(unit_offset))


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02)


CASES = [
    (config, rows, *shape)
    for config in CONFIGS
    for rows in ((3, 16) if config.dot else (1,))
    for shape in ((20, 96), (33, 256))
]


@pytest.mark.parametrize(("config", "rows", "outputs", "width"), CASES)
@pytest.mark.parametrize("unit_offset", [None, False, True])
def test_a_norm_before_the_layer_is_fused(
    device: str, config: gemv.Config, rows: int, outputs: int, width: int, unit_offset: bool | None
) -> None:
    case = Case(device, rows, outputs, width)
    norm = None if unit_offset is None else gemv.Norm(case.norm_weight, EPS, unit_offset)
    inputs = case.hidden.float() if unit_offset is None else case.normed(unit_offset)
    found = gemv.linear(case.hidden, case.weight, norm=norm, bias=case.bias, config=config)
    assert_near(found, inputs @ case.weight.float().T + case.bias.float())


@pytest.mark.parametrize(("config", "rows", "outputs", "width"), CASES)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_a_gated_activation_after_the_layer_is_fused(
    device: str, config: gemv.Config, rows: int, outputs: int, width: int, kind: Activation
) -> None:
    case = Case(device, rows, 2 * outputs, width)
    gate, up = (case.normed(False) @ case.weight.float().T).chunk(2, 1)
    acted = torch.nn.functional.silu(gate) if kind == "silu" else torch.nn.functional.gelu(gate, approximate="tanh")
    norm = gemv.Norm(case.norm_weight, EPS)
    assert_near(gemv.gated_linear(case.hidden, case.weight, kind, norm=norm, config=config), acted * up)


@pytest.mark.parametrize(("config", "rows", "outputs", "width"), CASES)
@pytest.mark.parametrize("delta_scale", [1.0, 0.22])
def test_the_residual_addition_after_the_layer_is_fused(
    device: str, config: gemv.Config, rows: int, outputs: int, width: int, delta_scale: float
) -> None:
    case = Case(device, rows, outputs, width)
    wanted = case.residual.float() + delta_scale * (case.hidden.float() @ case.weight.float().T)
    gemv.linear_add_(case.hidden, case.weight, case.residual, delta_scale=delta_scale, config=config)
    assert_near(case.residual, wanted)


@pytest.mark.parametrize("rows", [1, 2, 8, 16])
def test_the_chosen_cut_computes_the_layer(device: str, rows: int) -> None:
    case = Case(device, rows, 40, 576)
    assert_near(gemv.linear(case.hidden, case.weight), case.hidden.float() @ case.weight.float().T)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
@pytest.mark.parametrize(("outputs", "width"), [(6144, 4096), (1024, 3072), (151936, 1024), (577, 1001)])
def test_a_models_layers_are_computed(device: str, rows: int, outputs: int, width: int) -> None:
    case = Case(device, rows, outputs, width)
    norm = gemv.Norm(case.norm_weight, EPS)
    assert_near(gemv.linear(case.hidden, case.weight, norm=norm), case.normed(False) @ case.weight.float().T)
    one_row = gemv.linear(case.hidden, case.weight, norm=norm)
    assert torch.equal(one_row, gemv.linear(case.hidden, case.weight, norm=norm))


def test_more_rows_than_fit_are_refused(device: str) -> None:
    case = Case(device, 17, 8, 32)
    assert not gemv.fits(17, case.weight)
    with pytest.raises(ValueError, match="17 rows"):
        gemv.linear(case.hidden, case.weight)


def test_one_row_may_have_any_dtype(device: str) -> None:
    hidden, weight = torch.randn(1, 48, device=device), torch.randn(10, 48, device=device)
    torch.testing.assert_close(gemv.linear(hidden, weight), hidden @ weight.T)
