"""Those who are computed: who decodes, who is still being prefilled, and who gives way when blocks run out."""

from collections.abc import Iterator
from operator import attrgetter

from pagefleet_api.sizing import blocks_for
from pagefleet_engine.kv.pool import BlockPool
from pagefleet_engine.scheduler.books import Books
from pagefleet_engine.scheduler.sequence import Sequence
from pagefleet_engine.scheduler.waiting import WaitingLine

RESERVE_AFTER_PREEMPTIONS = 3
WATERMARK_SHARE = 100
_rank = attrgetter("rank")


class Seats:
    """Everybody who holds blocks. `decoding`, then `prefilling`, are in the order in which they took their seats.

    With `by_rank` those who decode are in the order of their rank, the smallest first, and whose is the largest of all
    gives way; so nobody gives way before one that stands after it.

    A sequence decodes here once the end of its prefill is planned, so its token may be in flight. One whose
    last token is in flight keeps its seat until the token has come.
    """

    def __init__(
        self, pool: BlockPool, books: Books, waiting: WaitingLine, most: int, *, by_rank: bool = False
    ) -> None:
        self._pool, self._books, self._waiting = pool, books, waiting
        self._most = most
        self._by_rank = by_rank
        self._watermark_blocks = -(-pool.num_blocks // WATERMARK_SHARE)
        self.decoding: list[Sequence] = []
        self.prefilling: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding
        yield from self.prefilling

    @property
    def full(self) -> bool:
        """Whether nobody else can sit down."""
        return len(self) >= self._most

    @property
    def prefill_tokens(self) -> int:
        """What is still to be computed of the prompts of those seated."""
        return sum(len(sequence.token_ids) - sequence.planned for sequence in self.prefilling)

    def make_room(self, sequence: Sequence) -> bool:
        """A block for its next token, preempting those who give way first; False when that is itself."""
        while not sequence.table.grow():
            self._books.block_allocation_failures_total += 1
            if self._preempt() is sequence:
                return False
        return True

    def _preempt(self) -> Sequence:
        sequence = max(self, key=_rank) if self._by_rank else (self.prefilling or self.decoding)[-1]
        (self.prefilling if sequence in self.prefilling else self.decoding).remove(sequence)
        sequence.lose_seat()
        self._books.preemptions_total += 1
        self._waiting.come_back(sequence)
        return sequence

    def headroom_blocks(self, sequence: Sequence) -> int:
        """Blocks that must stay available when `sequence` takes its seat, so that it keeps it.

        One for the growth of each of those seated, more with each preemption; from the third on enough for
        all of them to reach their ends, which later arrivals cannot spoil: so nobody is preempted a fourth
        time, but by those whose rank is better. An empty pool always admits.
        """
        seated = len(self)
        if seated == 0:
            return 0
        if sequence.preemptions < RESERVE_AFTER_PREEMPTIONS:
            return self._watermark_blocks + (1 + sequence.preemptions) * seated
        growth = sum(other.final_blocks - len(other.table.blocks) for other in self)
        return growth + sequence.final_blocks - blocks_for(len(sequence.token_ids))

    def sit_down(self, sequence: Sequence, cached_tokens: int) -> None:
        """It holds blocks now, and the first `cached_tokens` of its tokens are computed."""
        self._books.admitted(sequence, cached_tokens)
        sequence.take_seat(cached_tokens)
        self.prefilling.append(sequence)

    def move_on(self) -> None:
        """Those whose prefill has been planned to its end decode from the next step on."""
        started = [sequence for sequence in self.prefilling if sequence.decoding]
        if started:
            self.prefilling = [sequence for sequence in self.prefilling if not sequence.decoding]
            self._decode(started)

    def sweep(self) -> None:
        """Forget those who have ended."""
        self.decoding = [sequence for sequence in self.decoding if sequence.live]
        self.prefilling = [sequence for sequence in self.prefilling if sequence.live]

    def forget_flight(self) -> None:
        """Nobody asks for the steps in flight any more: everybody is where the last result left it."""
        seated = list(self)
        for sequence in seated:
            sequence.forget_flight()
        self.decoding.clear()
        self._decode([sequence for sequence in seated if sequence.decoding])
        self.prefilling = [sequence for sequence in seated if not sequence.decoding]

    def _decode(self, started: list[Sequence]) -> None:
        self.decoding += started
        if self._by_rank:
            self.decoding.sort(key=_rank)
