import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.facts.histogram import Histogram

BOUNDS = (0.1, 0.5, 1.0, math.inf)


def histogram(*counts: float, bounds: tuple[float, ...] = BOUNDS, total: float = 1.0) -> Histogram:
    return Histogram(bounds, counts, total)


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ((10, 10, 10, 10), 0.5, 0.05),
        ((0, 10, 10, 10), 0.5, 0.3),
        ((2, 4, 8, 8), 0.95, 0.95),
        ((0, 0, 0, 10), 0.5, 1.0),
        ((0, 0, 5, 10), 0.95, 1.0),
        ((5, 5, 5, 10), 0.5, 0.1),
        ((10, 10, 10, 10), 0.0, 0.0),
        ((0, 10, 10, 10), 0.0, 0.0),
        ((0, 0, 10, 10), 1.0, 1.0),
    ],
)
def test_a_quantile_is_linear_inside_its_bucket(counts: tuple[float, ...], share: float, value: float) -> None:
    assert histogram(*counts).quantile(share) == pytest.approx(value)


def test_nothing_observed_has_no_quantile_and_no_mean() -> None:
    assert histogram(0, 0, 0, 0).quantile(0.95) is None
    assert histogram(0, 0, 0, 0).mean is None
    assert histogram(4, bounds=(math.inf,)).quantile(0.5) is None
    assert histogram(0, 2, 2, 4, total=8.0).mean == 2.0


def test_a_first_bucket_below_zero_answers_with_its_bound() -> None:
    assert histogram(3, 4, bounds=(-1.0, math.inf)).quantile(0.5) == -1.0


def test_a_share_is_between_0_and_1() -> None:
    with pytest.raises(ValueError, match=r"not 1\.5"):
        histogram(1, 1, 1, 1).quantile(1.5)


def test_a_difference_is_what_was_observed_since() -> None:
    since = histogram(3, 5, 9, 9, total=6.0).minus(histogram(1, 2, 2, 2, total=1.0))
    assert since == histogram(2, 3, 7, 7, total=5.0)


def test_a_process_that_began_anew_has_no_difference() -> None:
    assert histogram(0, 1, 1, 1).minus(histogram(1, 2, 2, 2)) is None
    assert histogram(1, 1, bounds=(0.2, math.inf)).minus(histogram(1, 2, 2, 2)) is None


def test_a_sum_keeps_the_bounds_that_both_have() -> None:
    other = histogram(1, 2, 3, bounds=(0.5, 2.0, math.inf), total=4.0)
    assert histogram(1, 2, 3, 4).plus(other) == histogram(3, 7, bounds=(0.5, math.inf), total=5.0)


@pytest.mark.parametrize(
    ("bounds", "counts"),
    [((), ()), ((1.0,), (1,)), ((1.0, math.inf), (2, 1)), ((1.0, math.inf), (1,)), ((2.0, 1.0, math.inf), (1, 1, 1))],
)
def test_what_cannot_be_a_histogram_is_refused(bounds: tuple[float, ...], counts: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="no histogram"):
        Histogram(bounds, counts, 0.0)


steps = st.lists(st.integers(0, 50), min_size=4, max_size=4)


def cumulative(counts: list[int]) -> Histogram:
    return histogram(*(sum(counts[: index + 1]) for index in range(4)))


@given(steps, steps)
def test_adding_and_taking_away_are_inverse(a: list[int], b: list[int]) -> None:
    both = cumulative(a).plus(cumulative(b))
    rest = both.minus(cumulative(b))
    assert rest is not None
    assert rest.counts == cumulative(a).counts


@given(steps, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise_with_their_share(counts: list[int], a: float, b: float) -> None:
    low, high = cumulative(counts).quantile(min(a, b)), cumulative(counts).quantile(max(a, b))
    assert low is None or (high is not None and 0 <= low <= high <= 1.0)
