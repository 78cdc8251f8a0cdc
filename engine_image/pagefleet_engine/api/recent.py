"""What the core's totals were a little while ago, so that a gauge can tell of recent steps alone. Pure.

A ratio over all steps since the start hides what happens now. One over the steps since the last scrape is as short as
whoever scrapes pleases, and two who scrape would take it from each other. One in which each step fades with the next
stays for ever where nobody asks for anything. So the window is the engine's own and is one of time: `RECENT_S`, whoever
scrapes and how often. Totals are subtracted when they are scraped; a step costs one comparison.
"""

from pagefleet_api.metrics import RECENT_S
from pagefleet_engine.wire import CoreStatus

STRIDE_S = 1.0
"""The window is up to so much longer than `RECENT_S`."""


class RecentTotals:
    """The core's words of the last while, about one a second. One thread may note them while others look."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[float, CoreStatus], ...] = ()

    @property
    def earlier(self) -> CoreStatus | None:
        """The newest words that are `RECENT_S` old or older, as far as there are any, else the oldest."""
        kept = self._kept
        return kept[0][1] if kept else None

    def note(self, status: CoreStatus, now_s: float) -> None:
        """The core has said this, now."""
        kept = self._kept
        if kept and now_s - kept[-1][0] < STRIDE_S:
            return
        while len(kept) > 1 and kept[1][0] <= now_s - RECENT_S:
            kept = kept[1:]
        self._kept = (*kept, (now_s, status))
