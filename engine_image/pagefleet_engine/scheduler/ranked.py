"""Lines in which a rank decides, given to each request as it joins: the smallest is first, ties by arrival."""

from bisect import insort
from operator import attrgetter

from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.scheduler.waiting import ArrivalLine

SHORTENED_TOKENS = 2
"""By so much each request that takes a seat shortens the work of all that wait. With less, long requests wait longer.
With more, the order comes nearer to that of arrival: who comes passes only those who came while fewer others took seats
than the works differ by, over this; and hundreds may wait."""
MOST_TOKENS = 8192
"""Longer work counts as this: among such the order is that of arrival, as many do not say how long they may get."""

_by_rank = attrgetter("rank")


class PriorityLine(ArrivalLine):
    """By the request's own `priority`, the smallest first; who loses a seat goes back to the place of its rank.

    A priority is strict: while better ones keep coming, others wait.
    """

    __slots__ = ("_joined",)

    def __init__(self) -> None:
        super().__init__()
        self._line = []
        self._joined = 0

    def join(self, sequence: Sequence) -> None:
        self._joined += 1
        sequence.rank = (sequence.request.priority, self._joined)
        self.come_back(sequence)

    def come_back(self, sequence: Sequence) -> None:
        insort(self._line, sequence, key=_by_rank)
        self.tokens += len(sequence.token_ids)


class ShortestLine(ArrivalLine):
    """Shortest expected work first: the prompt's tokens that nobody has computed, and as many as the answer may have.

    Waiting shortens it: each request that takes a seat takes `SHORTENED_TOKENS` off the work of all that wait. So a
    request of W tokens, at most `MOST_TOKENS`, is not passed by any that comes once W / `SHORTENED_TOKENS` others have
    taken seats since it came, and waits for nobody but those who were in the line until then. The work is that of the
    moment of its arrival; as all are shortened alike, their order stays. Who loses a seat goes back to the front.
    """

    __slots__ = ("_joined", "_seated")

    def __init__(self) -> None:
        super().__init__()
        self._line = []
        self._joined = self._seated = 0

    def join(self, sequence: Sequence) -> None:
        self._joined += 1
        work = min(sequence.uncached_tokens + sequence.request.max_tokens, MOST_TOKENS)
        sequence.rank = (work + SHORTENED_TOKENS * self._seated, self._joined)
        insort(self._line, sequence, key=_by_rank)
        self.tokens += len(sequence.token_ids)

    def come_back(self, sequence: Sequence) -> None:
        self._joined += 1
        sequence.rank = (-1, -self._joined)
        super().come_back(sequence)

    def leave(self, tokens: int) -> None:
        self._seated += 1
        super().leave(tokens)
