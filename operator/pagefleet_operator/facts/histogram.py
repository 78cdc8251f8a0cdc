"""Histograms as values: differences, sums and quantiles of Prometheus buckets."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Self


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many observations were at most each bound, since the process began or between two looks at it.

    bounds: upper bounds of the buckets in the observations' unit, ascending; the last is infinite.
    counts: observations at or below each bound, never falling; the last is all of them.
    sum: of all observations, in their unit.

    Raises ValueError when these do not hold.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.bounds)) and self.bounds[-1:] == (math.inf,)
        never_falling = all(a <= b for a, b in pairwise((0.0, *self.counts)))
        if not rising or not never_falling or len(self.counts) != len(self.bounds):
            raise ValueError(f"no histogram: bounds {self.bounds}, counts {self.counts}")

    @property
    def count(self) -> float:
        """All observations."""
        return self.counts[-1]

    @property
    def mean(self) -> float | None:
        """Mean observation; None without any."""
        return self.sum / self.count if self.count else None

    def minus(self, earlier: Self) -> Self | None:
        """What was observed since `earlier`, the same process's histogram then; None when it has begun anew."""
        if self.bounds != earlier.bounds:
            return None
        counts = tuple(now - then for now, then in zip(self.counts, earlier.counts, strict=True))
        try:
            return type(self)(self.bounds, counts, self.sum - earlier.sum)
        except ValueError:
            return None

    def plus(self, other: Self) -> Self:
        """Both together, by the bounds that both have: at those the sums are exact."""
        bounds = tuple(bound for bound in self.bounds if bound in other.bounds)
        counts = tuple(self._at(bound) + other._at(bound) for bound in bounds)
        return type(self)(bounds, counts, self.sum + other.sum)

    def quantile(self, share: float) -> float | None:
        """The value that a `share` of the observations (0..1) is at or below, linear inside a bucket.

        None without observations, or without any finite bound. Above the largest finite bound the answer is
        that bound. Source: Prometheus, `bucketQuantile` in promql/quantile.go.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a share is between 0 and 1, not {share}")
        if not self.count or len(self.bounds) < 2:
            return None
        rank = share * self.count
        index = bisect_left(self.counts, rank)
        if index >= len(self.bounds) - 1:
            return self.bounds[-2]
        upper = self.bounds[index]
        lower, below = (self.bounds[index - 1], self.counts[index - 1]) if index else (0.0, 0.0)
        if index == 0 and upper <= 0:
            return upper
        inside = self.counts[index] - below
        return lower + (upper - lower) * (rank - below) / inside if inside else lower

    def _at(self, bound: float) -> float:
        return self.counts[self.bounds.index(bound)]
