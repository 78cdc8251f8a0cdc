"""Which sizes of a step are captured, and which are still to be. Pure but for the capture that it is given."""

import bisect
from collections.abc import Callable, Sequence


class CapturedSizes:
    """Sizes go from missing to captured, largest first: smaller graphs live in the largest one's memory."""

    def __init__(self, sizes: Sequence[int], capture: Callable[[int], None]) -> None:
        """`capture` makes the graphs of one size, or raises: then the size stays missing."""
        self._missing, self._capture = sorted(sizes), capture
        self._captured: list[int] = []

    @property
    def missing(self) -> int:
        """Sizes not captured yet."""
        return len(self._missing)

    def __contains__(self, size: int) -> bool:
        """Whether a step of exactly this size can be replayed."""
        return self.size_for(size) == size

    def size_for(self, rows: int) -> int | None:
        """The smallest captured size that holds `rows`, or None."""
        place = bisect.bisect_left(self._captured, rows)
        return self._captured[place] if place < len(self._captured) else None

    def capture(self, sizes: Sequence[int]) -> None:
        """Capture those of `sizes` that are missing, now."""
        for size in sorted(set(sizes) & set(self._missing), reverse=True):
            self._take(size)

    def capture_next(self) -> bool:
        """Capture the largest that is missing; False when there is none."""
        if not self._missing:
            return False
        self._take(self._missing[-1])
        return True

    def give_up(self) -> None:
        """Do without the sizes that are missing."""
        self._missing.clear()

    def _take(self, size: int) -> None:
        self._capture(size)
        self._missing.remove(size)
        bisect.insort(self._captured, size)
