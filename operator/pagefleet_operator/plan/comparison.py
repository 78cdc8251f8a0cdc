"""Whether a new generation of pods answers as well as the one before it.

A difference counts when it is beyond the bound and more than chance: of n requests of an equal generation, 5 % are
above the p95 on average, and only every fortieth time more than 5 % and two standard deviations of a binomial count.
"""

from bisect import bisect_left
from math import sqrt
from typing import NamedTuple

from pagefleet_api import quantity
from pagefleet_api.service import Analysis
from pagefleet_api.wording import percent
from pagefleet_operator.facts.histogram import Histogram
from pagefleet_operator.facts.latencies import Latencies

ENOUGH_REQUESTS = 30
"""Of each generation: with fewer, one slow answer makes a p95."""

EARLY_SIGMAS, FINAL_SIGMAS = 4.0, 2.0
"""How unlikely a difference must be: many looks during the time make chance likelier than the one at its end."""

_QUANTILE = 0.95


class Measured(NamedTuple):
    """Both generations since the measuring began."""

    stable: Latencies
    fresh: Latencies


class Comparison(NamedTuple):
    """The new generation against the one before it.

    requests: of the generation that had fewer. worse: what is out of bounds, each with both numbers.
    words: all that was compared.
    """

    requests: int
    worse: tuple[str, ...]
    words: str

    @property
    def enough(self) -> bool:
        """There were enough requests on both sides to say anything."""
        return self.requests >= ENOUGH_REQUESTS


def compare(analysis: Analysis, measured: Measured, *, sigmas: float) -> Comparison:
    """Judge by what is known of both; what one of them does not tell is not compared."""
    stable, fresh = measured
    requests = min(_requests(stable), _requests(fresh))
    found = (
        _slower("TTFT", stable.ttft, fresh.ttft, _number(analysis.max_ttft_regression), _requests(fresh), sigmas),
        _slower("ITL", stable.itl, fresh.itl, _number(analysis.max_itl_regression), _requests(fresh), sigmas),
        _failing(stable, fresh, _number(analysis.max_error_rate), sigmas),
    )
    judged = [one for one in found if one is not None]
    worse = tuple(words for words, is_worse in judged if is_worse and requests >= ENOUGH_REQUESTS)
    counts = f"{_requests(fresh)} requests against {_requests(stable)}"
    return Comparison(requests, worse, "; ".join((*(words for words, _ in judged), counts)))


def _requests(latencies: Latencies) -> int:
    """Requests that tell something: first tokens, or ends where first tokens are not told."""
    return int(latencies.ended or 0) if latencies.ttft is None else int(latencies.ttft.count)


def _slower(
    name: str, stable: Histogram | None, fresh: Histogram | None, more: float, requests: int, sigmas: float
) -> tuple[str, bool] | None:
    """One latency in words, and whether it is out of bounds.

    Times between the tokens of one request depend on each other, so requests are what is counted.
    """
    before = None if stable is None else stable.quantile(_QUANTILE)
    now = None if fresh is None else fresh.quantile(_QUANTILE)
    if fresh is None or before is None or now is None:
        return None
    limit = before * (1 + more)
    usual = 1 - _QUANTILE
    by_chance = usual + sigmas * sqrt(usual * (1 - usual) / max(requests, 1))
    words = f"{name} p95 {_seconds(now)} against {_seconds(before)}, at most {_seconds(limit)}"
    return words, now > limit and _share_above(fresh, limit) > by_chance


def _failing(stable: Latencies, fresh: Latencies, more: float, sigmas: float) -> tuple[str, bool] | None:
    before, now = stable.error_rate, fresh.error_rate
    if before is None or now is None or fresh.ended is None:
        return None
    limit = min(before + more, 1.0)
    by_chance = limit + sigmas * sqrt(limit * (1 - limit) / fresh.ended)
    words = f"errors {percent(now, 1)} against {percent(before, 1)}, at most {percent(limit, 1)}"
    return words, now > by_chance


def _share_above(histogram: Histogram, limit: float) -> float:
    """Share of the observations above `limit`, linear inside a bucket; 0..1."""
    index = bisect_left(histogram.bounds, limit)
    lower, below = (histogram.bounds[index - 1], histogram.counts[index - 1]) if index else (0.0, 0.0)
    part = (limit - lower) / (histogram.bounds[index] - lower)
    return 1 - (below + (histogram.counts[index] - below) * part) / histogram.count


def _number(text: str) -> float:
    return float(quantity.parse(text))


def _seconds(value_s: float) -> str:
    return f"{value_s * 1000:.1f} ms" if value_s < 1 else f"{value_s:.2f} s"
