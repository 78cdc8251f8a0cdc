"""Those who have no seat, and whose turn it is."""

from collections import deque
from collections.abc import Iterator, MutableSequence
from typing import Protocol

from pagefleet_engine.scheduler.sequence import Sequence

MOST_PASSED = 32
"""So many who wait for what others compute are passed in a step."""


class WaitingLine(Protocol):
    """Everybody who waits; the order is its own affair."""

    tokens: int
    """Of all that wait together: what is to be computed for them."""

    def __len__(self) -> int:
        """How many wait."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Everybody, in any order."""
        ...

    def join(self, sequence: Sequence) -> None:
        """A new one."""
        ...

    def come_back(self, sequence: Sequence) -> None:
        """One that has lost its seat."""
        ...

    def turns(self) -> Iterator[Sequence]:
        """In one pass: whose turn it is, one after the other. Each goes out by `leave` before the next is asked for.

        Who waits for what others compute of its prompt is passed, up to `MOST_PASSED` of them.
        """
        ...

    def leave(self, tokens: int) -> None:
        """Whose turn it is goes out of the line, with so many `tokens` that must be computed for it."""
        ...

    def sweep(self) -> None:
        """Forget those who have ended, and count again."""
        ...

    def forget_flight(self) -> None:
        """Nobody asks for the steps in flight any more."""
        ...


class ArrivalLine:
    """In order of arrival; who loses a seat goes back to the front, as it came before all others here."""

    __slots__ = ("_line", "_place", "tokens")

    def __init__(self) -> None:
        self._line: MutableSequence[Sequence] = deque()
        self._place = 0
        """Of whose turn it is."""
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def join(self, sequence: Sequence) -> None:
        self._line.append(sequence)
        self.tokens += len(sequence.token_ids)

    def come_back(self, sequence: Sequence) -> None:
        self._line.insert(0, sequence)
        self.tokens += len(sequence.token_ids)

    def turns(self) -> Iterator[Sequence]:
        passed = 0
        while passed < min(len(self._line), MOST_PASSED):
            sequence = self._line[passed]
            if sequence.awaits_others:
                passed += 1
                continue
            self._place = passed
            yield sequence

    def leave(self, tokens: int) -> None:
        self.tokens -= len(self._line[self._place].token_ids)
        del self._line[self._place]

    def sweep(self) -> None:
        kept = [sequence for sequence in self._line if sequence.live]
        self._line.clear()
        self._line.extend(kept)
        self.tokens = sum(len(sequence.token_ids) for sequence in self._line)

    def forget_flight(self) -> None:
        for sequence in self._line:
            sequence.forget_flight()
