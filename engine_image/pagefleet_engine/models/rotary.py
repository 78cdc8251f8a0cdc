"""Rotary position embedding (Su et al. 2021) as one complex multiplication.

Frequencies are computed in float32 as transformers does, so that both agree at long positions.
"""

import math

import torch

from pagefleet_engine.models.config import DividedFrequencies, LinearScaling, Llama3Scaling, ModelConfig


def frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position, [head size / 2], float32, scaling applied."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.int64).float() / config.head_size
    plain = 1.0 / config.rope_theta**exponents
    match config.rope_scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case DividedFrequencies(divisors):
            return plain / torch.tensor(divisors)
        case Llama3Scaling():
            return _llama3(plain, config.rope_scaling)


def rotations(config: ModelConfig, positions: int) -> torch.Tensor:
    """cos + i sin for positions 0 .. `positions` - 1: [positions, head size / 2], complex64."""
    angles = torch.outer(torch.arange(positions).float(), frequencies(config))
    return torch.complex(angles.cos(), angles.sin())


def pairs_together(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder a projection's rows so that the two numbers of a rotary pair are neighbours.

    [heads x head size, in]. Queries and keys reordered alike keep their dot products.
    """
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def rotate_(projected: torch.Tensor, heads: int, rotation: torch.Tensor) -> None:
    """Rotate the first `heads` heads of each token in place.

    `projected` is [tokens, at least heads x head size] with pairs together, `rotation` [tokens, 1,
    head size / 2].
    """
    half = rotation.shape[-1]
    rotated = projected[:, : heads * half * 2]
    if rotated.dtype is torch.float32:
        torch.view_as_complex(rotated.unflatten(1, (heads, half, 2))).mul_(rotation)
        return
    exact = rotated.float()
    torch.view_as_complex(exact.unflatten(1, (heads, half, 2))).mul_(rotation)
    rotated.copy_(exact)


def _llama3(plain: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1's rule, as in transformers' `_compute_llama3_parameters`."""
    wavelengths = 2 * math.pi / plain
    longest = scaling.original_max_positions / scaling.low_freq_factor
    shortest = scaling.original_max_positions / scaling.high_freq_factor
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / span
    ramp = (1 - smooth) * plain / scaling.factor + smooth * plain
    slow = torch.where(wavelengths > longest, plain / scaling.factor, plain)
    between = (wavelengths <= longest) & (wavelengths >= shortest)
    return torch.where(between, ramp, slow)
