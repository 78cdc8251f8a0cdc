"""How fast and how well engines answer: the histograms and counts that two generations of pods are compared by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from pagefleet_api.metrics import Engine
from pagefleet_operator.histogram import Histogram


class Text(Protocol):
    """An engine's `/metrics`, parsed; `Exposition` is one."""

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over the series of that name with these labels; None when there is none."""

    def histogram(self, family: str, **labels: str) -> Histogram | None:
        """Sum over a family's series with these labels; None when there is none."""


class LatencyNames(NamedTuple):
    """What one engine calls them on the wire.

    failed: values of the label `outcome` for requests that the engine failed, not their client.
    """

    ttft: str
    itl: str
    requests: str
    outcome: str
    failed: tuple[str, ...]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Beginnings of the series that `Latencies.read` needs."""
        return self.ttft, self.itl, self.requests


PAGEFLEET = LatencyNames(
    Engine.TIME_TO_FIRST_TOKEN.name, Engine.INTER_TOKEN_LATENCY.name, Engine.REQUESTS.name, "outcome", ("error",)
)


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

    @classmethod
    def read(cls, text: Text, names: LatencyNames = PAGEFLEET, *, restarts: int = 0) -> Self:
        """From an engine's `/metrics`."""
        ended = text.total(names.requests)
        failures = [text.total(names.requests, **{names.outcome: outcome}) or 0.0 for outcome in names.failed]
        failed = None if ended is None else sum(failures)
        return cls(text.histogram(names.ttft), text.histogram(names.itl), ended, failed, restarts)

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
