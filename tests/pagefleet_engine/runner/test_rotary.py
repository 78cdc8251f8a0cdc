"""Rotary frequencies and rotation; Llama 3's rule is proved against transformers by the tiny model."""

import dataclasses

import pytest
import torch

from pagefleet_engine.models.rope import DividedFrequencies, LinearScaling, Rope
from pagefleet_engine.models.rotary import frequencies, pairs_together, rotate_, rotations

pytestmark = pytest.mark.torch
SMALL = Rope(10000.0, 8)


def test_frequencies_fall_by_powers_of_theta_and_are_divided_by_the_scaling() -> None:
    plain = frequencies(SMALL, 16)
    assert plain.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    linear = frequencies(dataclasses.replace(SMALL, scaling=LinearScaling(4.0)), 16)
    assert torch.equal(linear, plain / 4)
    divided = frequencies(dataclasses.replace(SMALL, scaling=DividedFrequencies((1.0, 2.0, 4.0, 8.0))), 16)
    assert divided.tolist() == pytest.approx([1.0, 0.05, 0.0025, 0.000125])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_rotating_reordered_heads_equals_rotating_halves_and_spares_the_values(
    dtype: torch.dtype, tolerance: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    heads, tokens = 2, 5
    given = torch.randn(tokens, 24, generator=generator).to(dtype)
    turn = rotations(SMALL, tokens)
    order = pairs_together(torch.arange(16), heads, 8)
    reordered = torch.cat([given[:, :16][:, order], given[:, 16:]], dim=1)
    rotate_(reordered[:, :16].unflatten(1, (heads, 8)), turn[:, None])
    halves = given[:, :16].float().view(tokens, 2, 2, 4)
    cos, sin = turn.real[:, None], turn.imag[:, None]
    first, second = halves[:, :, 0], halves[:, :, 1]
    expected = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=2).view(tokens, 16)
    torch.testing.assert_close(reordered[:, :16].float(), expected[:, order], atol=tolerance, rtol=tolerance)
    assert torch.equal(reordered[:, 16:], given[:, 16:])
