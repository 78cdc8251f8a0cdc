"""How fast and how well engines answer: the histograms and counts that two generations of pods are compared by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pagefleet_operator.facts.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Latencies:
    """What one container of an engine has measured since it began, or between two looks at it.

    ttft, itl: time to first token and between two tokens, in seconds; None where the engine has no such series.
    ended: requests that came to any end; None where that is not told. failed: those among them that the engine failed.
    """

    ttft: Histogram | None
    itl: Histogram | None
    ended: float | None
    failed: float | None
    restarts: int = 0
    """The pod's `restarts` then: which of its containers it was."""
    weights_s: float | None = None
    """Seconds that the weights took when it started; None where that is not told."""

    def minus(self, earlier: Self) -> Self:
        """Since `earlier`, of the same pod; all of it when another container ran then, or its counts began anew."""
        if earlier.restarts != self.restarts:
            return self
        return type(self)(
            _grown(self.ttft, earlier.ttft),
            _grown(self.itl, earlier.itl),
            _more(self.ended, earlier.ended),
            _more(self.failed, earlier.failed),
            self.restarts,
        )

    @property
    def error_rate(self) -> float | None:
        """Failed of ended requests, 0..1; None without any."""
        return None if not self.ended or self.failed is None else self.failed / self.ended


def together(parts: Iterable[Latencies]) -> Latencies:
    """Of several pods; without any of them nothing is known."""
    total = Latencies(None, None, None, None)
    for part in parts:
        ttft, itl = _both(total.ttft, part.ttft), _both(total.itl, part.itl)
        total = Latencies(ttft, itl, _sum(total.ended, part.ended), _sum(total.failed, part.failed))
    return total


def _grown(now: Histogram | None, then: Histogram | None) -> Histogram | None:
    if now is None or then is None:
        return now
    return now.minus(then) or now


def _more(now: float | None, then: float | None) -> float | None:
    return now if now is None or then is None or now < then else now - then


def _both(one: Histogram | None, other: Histogram | None) -> Histogram | None:
    return other if one is None else one if other is None else one.plus(other)


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
