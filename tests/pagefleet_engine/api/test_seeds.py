"""Seeds of choices."""

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.api.seeds import choice_seed


@given(st.integers(-(2**63), 2**64 - 1))
def test_choices_of_one_request_have_seeds_of_their_own_within_63_bits(seed: int) -> None:
    seeds = [choice_seed(seed, index) for index in range(128)]
    assert len(set(seeds)) == 128
    assert all(0 <= each < 2**63 for each in seeds)


def test_the_first_choice_has_the_seed_that_was_asked_for() -> None:
    assert choice_seed(1234, 0) == 1234


def test_neighbouring_seeds_share_no_choices() -> None:
    seeds = [choice_seed(seed, index) for seed in range(50) for index in range(1, 20)]
    assert len(set(seeds)) == len(seeds)
