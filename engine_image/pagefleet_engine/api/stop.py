"""Stop strings over text that comes in pieces."""

from collections.abc import Sequence
from typing import NamedTuple


class Matched(NamedTuple):
    """Text that may be shown now, and whether a stop string ended it."""

    text: str
    stopped: bool


class Pattern(NamedTuple):
    """A stop string, prepared once for all answers that look for it."""

    text: str
    fallbacks: tuple[int, ...]
    """Of the first n + 1 characters: the length of the longest shorter prefix that also ends them."""

    @classmethod
    def of(cls, text: str) -> "Pattern":
        """Prepare `text`, which is not empty (Knuth, Morris, Pratt 1977: time and room grow with its length)."""
        fallbacks, matched = [0], 0
        for character in text[1:]:
            while matched and text[matched] != character:
                matched = fallbacks[matched - 1]
            matched += text[matched] == character
            fallbacks.append(matched)
        return cls(text, tuple(fallbacks))

    def after(self, matched: int, character: str) -> int:
        """How many characters are matched after one more, where `matched`, fewer than all, were before it."""
        while matched and self.text[matched] != character:
            matched = self.fallbacks[matched - 1]
        return matched + (self.text[matched] == character)


class StopMatcher:
    """Holds back every suffix that may still become a stop string; nothing of a stop string gets out.

    The stop string that is complete first wins, the longest of those that end together; so the text is the
    same for every way of splitting it into pieces. A character costs the same however long the stop strings
    are and whatever came before. After a match, `push` must not be called again.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = tuple(patterns)
        self._matched = [0] * len(self._patterns)
        self._held = ""

    def push(self, text: str) -> Matched:
        """The part of the held and new text that no stop string can claim any more."""
        if not self._held and not any(pattern.text[0] in text for pattern in self._patterns):
            return Matched(text, stopped=False)
        before, buffer = len(self._held), self._held + text
        for end, character in enumerate(text, before + 1):
            stop_chars = self._advance(character)
            if stop_chars:
                self._held = ""
                return Matched(buffer[: end - stop_chars], stopped=True)
        shown = len(buffer) - max(self._matched, default=0)
        self._held = buffer[shown:]
        return Matched(buffer[:shown], stopped=False)

    def finish(self) -> str:
        """The held text, once no more can come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Characters of the longest stop string that ends with this one; 0 where none does."""
        longest = 0
        for index, pattern in enumerate(self._patterns):
            matched = self._matched[index] = pattern.after(self._matched[index], character)
            if matched == len(pattern.text):
                longest = max(longest, matched)
        return longest
