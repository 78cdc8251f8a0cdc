"""Those who have no seat."""

from collections import deque

from pagefleet_engine.scheduler.sequence import Sequence

MOST_PASSED = 32
"""So many who wait for what others compute are passed in a step."""


class WaitingLine:
    """In order of arrival; who loses a seat goes back to the front, as it came before all others here."""

    __slots__ = ("_line", "tokens")

    def __init__(self) -> None:
        self._line: deque[Sequence] = deque()
        self.tokens = 0
        """Of all that wait together: what is to be computed for them."""

    def __len__(self) -> int:
        return len(self._line)

    def __getitem__(self, place: int) -> Sequence:
        """The one at this place; 0 is whose turn is next."""
        return self._line[place]

    def join(self, sequence: Sequence) -> None:
        """A new one, at the end."""
        self._line.append(sequence)
        self.tokens += len(sequence.token_ids)

    def come_back(self, sequence: Sequence) -> None:
        """One that has lost its seat, at the front."""
        self._line.appendleft(sequence)
        self.tokens += len(sequence.token_ids)

    def leave(self, place: int) -> None:
        """The one at this place goes out of the line."""
        self.tokens -= len(self._line[place].token_ids)
        del self._line[place]

    def sweep(self) -> None:
        """Forget those who have ended, and count again."""
        self._line = deque(sequence for sequence in self._line if sequence.live)
        self.tokens = sum(len(sequence.token_ids) for sequence in self._line)

    def forget_flight(self) -> None:
        """Nobody asks for the steps in flight any more."""
        for sequence in self._line:
            sequence.forget_flight()
