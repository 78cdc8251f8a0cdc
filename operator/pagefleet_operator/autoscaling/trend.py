"""A load that grows steadily is answered as far ahead as a pod takes to start.

A straight line through the last minute, by least squares. Only a line that the points lie on counts: of a step, the
best line explains three quarters at most, so a step is no trend; nor, as a rule, is the noise of a constant load.
"""

from typing import NamedTuple

from pagefleet_operator.autoscaling.policy import Policy
from pagefleet_operator.autoscaling.proposals import seats_per_pod
from pagefleet_operator.autoscaling.readings import Readings
from pagefleet_operator.autoscaling.values import Memory, Point
from pagefleet_operator.facts.observed import Now

WINDOW_S = 60.0
SPACING_S = 3.5
"""Points are taken at most so often, so that a busy and a calm service are judged alike."""
LEAST_POINTS = 6
LEAST_SPAN_S = 20.0
EXPLAINED = 0.9
"""Share of the variance that the line must explain."""
GROWTH_LIMIT = 2.0
"""Never more than twice the present load, however steep the line."""


class Forecast(NamedTuple):
    """What is expected in flight, and when."""

    growth: float
    """Expected load as a multiple of the present one, above 1."""
    in_flight: float
    horizon_s: float
    per_s: float
    """Requests in flight by which the load grows each second."""


def remember(memory: Memory, readings: Readings, now: Now) -> tuple[Point, ...]:
    """The points to keep; sums in which a pod is missing are no points, as its load would look like a step."""
    now_s = now.monotonic_s
    kept = tuple(point for point in memory.trend if now_s - point.when_s <= WINDOW_S)
    if readings.empty or readings.in_flight.missing or (kept and now_s - kept[-1].when_s < SPACING_S):
        return kept
    return (*kept, Point(now_s, readings.in_flight.known))


def forecast(points: tuple[Point, ...], horizon_s: float) -> Forecast | None:
    """Where the line leads; None while there is no line upwards."""
    if len(points) < LEAST_POINTS or points[-1].when_s - points[0].when_s < LEAST_SPAN_S:
        return None
    count = len(points)
    mean_s = sum(point.when_s for point in points) / count
    mean = sum(point.in_flight for point in points) / count
    spread_s = sum((point.when_s - mean_s) ** 2 for point in points)
    spread = sum((point.in_flight - mean) ** 2 for point in points)
    together = sum((point.when_s - mean_s) * (point.in_flight - mean) for point in points)
    if together <= 0 or together**2 < EXPLAINED * spread_s * spread:
        return None
    slope, present = together / spread_s, points[-1].in_flight
    expected = min(present + slope * horizon_s, GROWTH_LIMIT * present)
    return Forecast(expected / present, expected, horizon_s, slope) if expected > present else None


def pods(policy: Policy, readings: Readings, expected: Forecast) -> int:
    """The fewest pods that would hold the expected load; seats alone, as they are what grows with it."""
    return -int(-readings.in_flight.known * expected.growth // seats_per_pod(policy))
