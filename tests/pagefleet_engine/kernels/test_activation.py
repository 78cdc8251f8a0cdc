"""The gated activation agrees with torch's functions, rounding included."""

import pytest
import torch

from pagefleet_engine.kernels.activation import Activation, gated
from tests.pagefleet_engine.kernels.nearness import assert_near

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "inner"), [(1, 96), (17, 2049), (2, 300)])
def test_the_gate_is_activated_and_multiplied(
    device: str, dtype: torch.dtype, kind: Activation, rows: int, inner: int
) -> None:
    torch.manual_seed(inner)
    wide = (torch.randn(rows, 2 * inner + 8, device=device) * 3).to(dtype)
    gate_up = wide[:, : 2 * inner]
    gate, up = gate_up[:, :inner], gate_up[:, inner:]
    silu = torch.nn.functional.silu(gate)
    wanted = (silu if kind == "silu" else torch.nn.functional.gelu(gate, approximate="tanh")) * up
    assert_near(gated(gate_up, kind), wanted)
    over_the_gates = gated(gate_up, kind, in_place=True)
    assert over_the_gates.data_ptr() == gate_up.data_ptr()
    assert_near(over_the_gates, wanted)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_large_gates_stay_finite(device: str, kind: Activation) -> None:
    gate_up = torch.tensor([[1e4, -1e4, 1.0, 1.0]], device=device)
    assert gated(gate_up, kind).tolist() == [[1e4, 0.0]]
