"""A generation is worse when it is out of bounds by more than chance, and never for want of requests."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_api.service import Analysis
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.latencies import Latencies
from pagefleet_operator.plan.comparison import EARLY_SIGMAS, FINAL_SIGMAS, Measured, compare

BOUNDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, inf)
NOTHING = Latencies(None, None, None, None)
RULES = Analysis()


def spread(count: int, upper_s: float) -> Histogram:
    """So many values spread evenly up to a bound."""
    return Histogram(BOUNDS, tuple(count * min(1.0, bound / upper_s) for bound in BOUNDS), 0.0)


def answers(count: int = 200, ttft_s: float = 0.4, *, failed: int = 0, itl_s: float = 0.1) -> Latencies:
    """So many requests with times spread evenly up to these bounds."""
    return Latencies(spread(count, ttft_s), spread(count * 50, itl_s), count, failed)


@pytest.mark.parametrize(
    ("fresh", "worse"),
    [
        pytest.param(answers(), None, id="equal"),
        pytest.param(answers(ttft_s=0.1, itl_s=0.05), None, id="faster"),
        pytest.param(answers(ttft_s=0.8), "TTFT p95 760.0 ms against 380.0 ms, at most 456.0 ms", id="twice the TTFT"),
        pytest.param(answers(itl_s=0.2), "ITL p95 190.0 ms against 95.0 ms, at most 114.0 ms", id="twice the ITL"),
        pytest.param(answers(ttft_s=1.6), "TTFT p95 1.52 s against 380.0 ms, at most 456.0 ms", id="four times"),
        pytest.param(answers(failed=20), "errors 10.0 % against 0.0 %, at most 1.0 %", id="a tenth fails"),
        pytest.param(answers(failed=3), None, id="a few failures are chance"),
    ],
)
def test_a_generation_against_the_one_before_it(fresh: Latencies, worse: str | None) -> None:
    found = compare(RULES, Measured(answers(1000), fresh), sigmas=FINAL_SIGMAS)
    assert found.worse == (() if worse is None else (worse,))
    assert (found.requests, found.enough) == (200, True)
    assert found.words.endswith("200 requests against 1000")


def test_everything_out_of_bounds_is_named() -> None:
    found = compare(RULES, Measured(answers(), answers(ttft_s=1.6, itl_s=0.8, failed=100)), sigmas=EARLY_SIGMAS)
    assert [words.partition(" ")[0] for words in found.worse] == ["TTFT", "ITL", "errors"]


def test_wider_bounds_let_more_through() -> None:
    wide = Analysis(maxTTFTRegression="2", maxITLRegression="2", maxErrorRate="0.5")
    assert not compare(wide, Measured(answers(), answers(ttft_s=0.8, itl_s=0.2, failed=40)), sigmas=2).worse


@given(st.integers(0, 29), st.floats(0.05, 1.6))
def test_a_few_requests_prove_nothing(count: int, ttft_s: float) -> None:
    for measured in (Measured(answers(1000), answers(count, ttft_s)), Measured(answers(count, 0.05), answers(1000))):
        found = compare(RULES, measured, sigmas=FINAL_SIGMAS)
        assert not found.enough
        assert not found.worse


def test_a_difference_that_may_be_chance_counts_only_at_the_end() -> None:
    """A tenth of 100 requests is above the bound: more than 5 % + 2 deviations, less than 5 % + 4."""
    stable = Histogram((0.1, 0.2, inf), (95, 100, 100), 0.0)
    fresh = Histogram((0.1, 0.2, inf), (89, 100, 100), 0.0)
    measured = Measured(Latencies(stable, None, 100, 0), Latencies(fresh, None, 100, 0))
    rules = Analysis(maxTTFTRegression="0")
    assert compare(rules, measured, sigmas=FINAL_SIGMAS).worse
    assert not compare(rules, measured, sigmas=EARLY_SIGMAS).worse


def test_what_one_side_does_not_tell_is_not_compared() -> None:
    blind = Latencies(None, None, 500, None)
    found = compare(RULES, Measured(blind, answers(ttft_s=1.6, failed=100)), sigmas=2)
    assert (found.worse, found.words) == ((), "200 requests against 500")
    assert not compare(RULES, Measured(NOTHING, NOTHING), sigmas=2).enough
    assert compare(RULES, Measured(answers(), blind), sigmas=2).worse == ()


def test_a_limit_below_the_first_bound_is_inside_the_first_bucket() -> None:
    slow = Latencies(Histogram((1.0, inf), (100, 100), 0.0), None, 100, 0)
    quick = Latencies(Histogram((0.1, inf), (100, 100), 0.0), None, 100, 0)
    assert compare(RULES, Measured(quick, slow), sigmas=2).worse
