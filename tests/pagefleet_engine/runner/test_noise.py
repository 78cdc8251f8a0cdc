"""The sampler's random numbers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.runner.noise import uniform


@given(st.integers(), st.integers(min_value=0, max_value=1 << 40))
def test_noise_is_in_the_unit_interval_and_repeats(seed: int, position: int) -> None:
    value = uniform(seed, position)
    assert 0 <= value < 1
    assert uniform(seed, position) == value


def test_noise_never_changes_between_versions() -> None:
    assert [round(uniform(seed, position), 12) for seed, position in ((0, 0), (1, 0), (0, 1), (-1, 7))] == GOLDEN


def test_noise_is_even_over_positions_and_over_seeds() -> None:
    for values in ([uniform(11, i) for i in range(20000)], [uniform(i, 11) for i in range(20000)]):
        counts, _ = np.histogram(values, bins=20, range=(0, 1))
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_neighbouring_seeds_and_positions_are_not_correlated() -> None:
    grid = np.array([[uniform(seed, position) for position in range(200)] for seed in range(200)])
    for left, right in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02


GOLDEN = [0.652448486374, 0.368189515652, 0.701212109522, 0.72385827459]
