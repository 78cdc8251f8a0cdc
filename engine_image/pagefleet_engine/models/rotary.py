"""Rotary position embedding (Su et al. 2021) as one complex multiplication.

Frequencies are computed in float32 as transformers does, so that both agree at long positions.
"""

import math

import torch

from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.rope import (
    DividedFrequencies,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    Rope,
    YarnScaling,
)


def frequencies(rope: Rope, max_positions: int) -> torch.Tensor:
    """Radians per position, [size / 2], float32, scaling applied; `max_positions` is the served window."""
    exponents = torch.arange(0, rope.size, 2, dtype=torch.int64).float() / rope.size
    plain = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case DividedFrequencies(divisors):
            return plain / torch.tensor(divisors)
        case Llama3Scaling():
            return _llama3(plain, rope.scaling)
        case LongScaling(short, long, original_max_positions):
            # transformers divides inside: 1 / (divisor * theta ** exponent)
            divisors = long if max_positions > original_max_positions else short
            return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * rope.theta**exponents)
        case YarnScaling():
            return _yarn(rope, rope.scaling, rope.theta**exponents)


def rotations(rope: Rope, max_positions: int) -> torch.Tensor:
    """cos + i sin for positions 0 .. `max_positions` - 1: [positions, size / 2], complex64."""
    angles = torch.outer(torch.arange(max_positions).float(), frequencies(rope, max_positions))
    turned = torch.complex(angles.cos(), angles.sin())
    return turned * rope.scaling.amplitude if isinstance(rope.scaling, LongScaling | YarnScaling) else turned


def tables(config: ModelConfig, max_positions: int) -> tuple[torch.Tensor, ...]:
    """For each of the model's ropes [max_positions, size], float32: cosines, then sines.

    Heads rotate by halves: element i and element i + size / 2 are a pair.
    """
    turned = (rotations(rope, max_positions) for rope in config.ropes)
    return tuple(torch.cat([turn.real, turn.imag], 1) for turn in turned)


def pairs_together(rows: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """Reorder a projection's rows so that the two numbers of a rotary pair are neighbours.

    `rows` is [heads x head size, ...]; of each head the first `size` rows rotate. Queries and keys reordered
    alike keep their dot products.
    """
    by_head = rows.unflatten(0, (heads, -1))
    paired = by_head[:, :size].unflatten(1, (2, size // 2)).transpose(1, 2).flatten(1, 2)
    return torch.cat([paired, by_head[:, size:]], 1).flatten(0, 1)


def rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate the first elements of each head in place: as many as `rotation` has numbers for.

    `heads` is [tokens, heads, head size] with pairs together, `rotation` [tokens, 1, size / 2].
    """
    half = rotation.shape[-1]
    rotated = heads[..., : 2 * half].unflatten(-1, (half, 2))
    if rotated.dtype is torch.float32:
        torch.view_as_complex(rotated).mul_(rotation)
        return
    exact = rotated.float()
    torch.view_as_complex(exact).mul_(rotation)
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


def _yarn(rope: Rope, scaling: YarnScaling, powers: torch.Tensor) -> torch.Tensor:
    """YaRN's ramp, as in transformers' `_compute_yarn_parameters`; `powers` are theta ** (2 i / size)."""

    def turning(turns: float) -> float:
        """The pair that turns this often in the original window."""
        wavelength = scaling.original_max_positions / (turns * 2 * math.pi)
        return rope.size * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = turning(scaling.beta_fast), turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.size - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(rope.size // 2).float() - low) / width).clamp(0, 1)
    kept = 1 - stretched
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept
