"""The gated product of many rows is right by two groups and by three, and takes those that need less time."""

import pytest
import torch

from pagefleet_engine.kernels import activation, gated_warps
from pagefleet_engine.kernels.activation import Activation

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        (192, 3),
        (256, 2),
        (448, 2),
        (576, 3),
        (640, 2),
        (768, 3),
        (1024, 2),
        (1152, 2),
        (1536, 3),
        (1664, 3),
        (2048, 2),
        (3072, 3),
        (8192, 3),
    ],
)
def test_rows_take_the_groups_that_were_measured_to_need_less_time(rows: int, groups: int) -> None:
    assert gated_warps.groups_for(rows, 14336, 132) == groups


def test_a_card_with_room_for_all_tiles_at_once_takes_the_shorter_turn() -> None:
    assert gated_warps.groups_for(192, 14336, 224) == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("inner", "width", "kind"), [(14336, 4096, "silu"), (3000, 1000, "gelu_tanh")])
@pytest.mark.parametrize("rows", [1, 129, 191, 192, 193, 200, 1000, 8192])
def test_two_groups_and_three_give_the_same_right_answer(
    device: str, rows: int, inner: int, width: int, kind: Activation
) -> None:
    torch.manual_seed(rows)
    hidden = torch.randn(rows, width, device=device).bfloat16()
    weight = (torch.randn(2 * inner, width, device=device) * 0.02).bfloat16()
    two, three = (gated_warps.gated_product(hidden, weight, kind, groups=groups) for groups in (2, 3))
    wanted = activation.gated((hidden.float() @ weight.float().T).bfloat16(), kind).float()
    assert torch.equal(two, three)
    assert (two.float() - wanted).norm() < 1e-2 * wanted.norm()
