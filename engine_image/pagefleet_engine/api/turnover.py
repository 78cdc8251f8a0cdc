"""When a full queue has room again: how fast answers end while others wait, and who was told to come back when."""

import math

MEMORY_S = 30.0
"""After so long a time in which somebody waited, what was measured before counts for a third (1/e)."""
LEAST_S, MOST_S = 1.0, 60.0
"""Bounds of what a refused client is told: clients round to seconds, and a longer wait is worth a try elsewhere."""


class Turnover:
    """Ends of answers per second, and places that refused clients were told to come back for.

    Only time in which somebody waits counts: an engine with free seats ends as many answers as it is asked for,
    which says nothing of what it could. All times are seconds on one monotonic clock, given by the caller.
    """

    def __init__(self) -> None:
        self._ended = self._busy_s = 0.0
        self._ended_at_s: float | None = None
        """The latest end after which others went on waiting."""
        self._told_until_s = -math.inf

    def end(self, now_s: float, *, others_wait: bool) -> None:
        """One answer has ended, and its place is free."""
        if self._ended_at_s is not None:
            passed_s = now_s - self._ended_at_s
            kept = math.exp(-passed_s / MEMORY_S)
            self._ended, self._busy_s = self._ended * kept + 1, self._busy_s * kept + passed_s
        self._ended_at_s = now_s if others_wait else None

    def per_s(self, now_s: float) -> float | None:
        """Ends per second lately; None before any two that followed each other while somebody waited.

        A time without any counts as soon as it is longer than usual.
        """
        if not self._ended:
            return None
        idle_s = 0.0 if self._ended_at_s is None else now_s - self._ended_at_s
        spent_s = max(self._busy_s, (self._busy_s + idle_s) * self._ended / (self._ended + 1))
        return self._ended / spent_s if spent_s else math.inf

    def come_back_s(self, places: int, now_s: float, usual_per_s: float | None, *, turn: int) -> float:
        """Seconds until `places` will have come free that nobody else was told of; 1 to 60.

        `usual_per_s` is taken while nothing is measured; without it too, a client may try again at once. Nobody is told
        a later moment than that at which all have changed who are in now, `turn` places: one client that asks again and
        again must not put off all others.
        """
        per_s = self.per_s(now_s) or usual_per_s
        if per_s is None:
            return LEAST_S
        latest_s = now_s + min(max(places, turn) / per_s, MOST_S)
        self._told_until_s = min(max(self._told_until_s, now_s) + places / per_s, latest_s)
        return max(self._told_until_s - now_s, LEAST_S)

    def room(self) -> None:
        """Somebody came in and there is room for more: what was told is over."""
        self._told_until_s = -math.inf
