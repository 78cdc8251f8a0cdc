"""Stop strings over text that comes in pieces."""

from collections.abc import Sequence
from typing import NamedTuple


class Matched(NamedTuple):
    """Text that may be shown now, and whether a stop string ended it."""

    text: str
    stopped: bool


class StopMatcher:
    """Holds back every suffix that may still become a stop string; nothing of a stop string gets out.

    The stop string that is complete first wins, the longest of those that end together; so the text is the
    same for every way of splitting it into pieces. After a match, `push` must not be called again.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> Matched:
        """The part of the held and new text that no stop string can claim any more."""
        if not self._stops:
            return Matched(text, stopped=False)
        buffer = self._held + text
        start = self._first_match(buffer)
        if start is not None:
            self._held = ""
            return Matched(buffer[:start], stopped=True)
        shown = len(buffer) - self._suffix_to_hold(buffer)
        self._held = buffer[shown:]
        return Matched(buffer[:shown], stopped=False)

    def finish(self) -> str:
        """The held text, once no more can come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> int | None:
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0:
                found = (start + len(stop), start)
                best = found if best is None else min(best, found)
        return None if best is None else best[1]

    def _suffix_to_hold(self, buffer: str) -> int:
        """Length of the longest suffix of `buffer` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
