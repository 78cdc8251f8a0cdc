"""Random numbers that depend on a sequence's seed and a token's position alone.

splitmix64 (Steele, Lea, Flood 2014) as a counter-based hash: no state to carry, so a token is drawn alike
in any batch, after a preemption and after a restart.
"""

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MANTISSA_BITS = 53


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for the token at `position` of a sequence with `seed` (any integers)."""
    state = _mixed((seed & _MASK) + _GOLDEN_GAMMA)
    bits = _mixed(state + (position + 1) * _GOLDEN_GAMMA)
    return float((bits >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS))


def _mixed(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
