"""Rotary position embeddings as values: a base, a size, and how the frequencies are stretched."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All rotary frequencies divided by one factor (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low rotary frequencies divided by `factor`, high ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class DividedFrequencies:
    """A divisor for each rotary frequency, as GGUF's `rope_freqs.weight` gives them."""

    divisors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LongScaling:
    """Phi's longrope (Ding et al. 2024): a divisor for each frequency, one list for windows of at most
    `original_max_positions` tokens and one for longer ones; cosine and sine are multiplied by `amplitude`.

    The served window decides, once: keys in the cache cannot change lists when a sequence grows.
    """

    short_divisors: tuple[float, ...]
    long_divisors: tuple[float, ...]
    original_max_positions: int
    amplitude: float


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): frequencies that turn fewer than `beta_slow` times in the original window
    divided by `factor`, those above `beta_fast` kept, a ramp between; `amplitude` as in longrope.
    """

    factor: float
    original_max_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    amplitude: float


RopeScaling = LinearScaling | Llama3Scaling | DividedFrequencies | LongScaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotary embedding: it turns the first `size` elements of a head, the rest passes through."""

    theta: float
    size: int
    scaling: RopeScaling | None = None
