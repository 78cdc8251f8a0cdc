"""Seeds of choices; pure."""

_MASK = (1 << 64) - 1
_SEED_MASK = (1 << 63) - 1


def choice_seed(seed: int, index: int) -> int:
    """A seed of its own for each choice of one request, 0 ≤ seed < 2^63; the first choice's is `seed`.

    The runner's noise depends on seed and position alone, so equal seeds would give equal choices. Mixed
    with SplitMix64 (Steele, Lea, Flood 2014), so that neighbouring seeds do not share choices.
    """
    if index == 0:
        return seed & _SEED_MASK
    mixed = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) & _SEED_MASK
