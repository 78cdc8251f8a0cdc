"""The KV memory's blocks: who references them, which are free, and which free ones still hold a prefix.

Every operation is O(1) per block. A block is *used* while some sequence references it, else *cached* when
it holds a prefix that can be taken again, else *free*. Cached and free ones form one doubly linked list
from the next to be taken to the last; an unlinked block is nowhere in it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class PoolCheck(NamedTuple):
    """What the invariant checker found; all is well when there are no leaks and no faults."""

    leaked_blocks: int
    faults: tuple[str, ...]


class BlockPool:
    """Reference counts, the free list and the prefix index over blocks 0 .. `num_blocks` - 1."""

    __slots__ = (
        "_block_of",
        "_cached",
        "_digest_of",
        "_next",
        "_previous",
        "_promises",
        "_references",
        "available",
        "num_blocks",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.available = num_blocks
        """Blocks that no sequence references: free and cached."""
        self._references = [0] * num_blocks
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._promises: Counter[bytes] = Counter()
        """By how many sequences each prefix is going to be published."""
        self._cached = 0
        # Index `num_blocks` is the list's sentinel: its next is the head, its previous the tail.
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]

    @property
    def used(self) -> int:
        """Blocks that some sequence references."""
        return self.num_blocks - self.available

    @property
    def cached(self) -> int:
        """Blocks without a reference that hold a prefix."""
        return self._cached

    @property
    def free(self) -> int:
        """Blocks without a reference that hold nothing."""
        return self.available - self._cached

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks that hold the longest known start of the chain; nothing changes."""
        blocks: list[int] = []
        block_of = self._block_of
        for digest in digests:
            block = block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def promise(self, digests: Sequence[bytes]) -> None:
        """Somebody is going to compute and publish these."""
        self._promises.update(digests)

    def withdraw(self, digests: Sequence[bytes]) -> None:
        """One who promised these has published them, or will not."""
        promises = self._promises
        for digest in digests:
            promises[digest] -= 1
            if not promises[digest]:
                del promises[digest]

    def promises(self, digests: Sequence[bytes], known: int, blocks: int) -> bool:
        """Whether so many `blocks` of the chain are promised, next to the `known` ones at its start."""
        wanted = digests[known : known + blocks]
        return len(wanted) == blocks and all(map(self._promises.__contains__, wanted))

    def reserve(self, shared: Sequence[int], fresh: int, headroom: int) -> list[int] | None:
        """A reference to each of `shared` and `fresh` blocks of one's own, or None while they do not fit.

        `headroom` blocks must stay available afterwards. Nothing changes unless all fit. Returns the
        blocks in order, shared ones first.
        """
        references = self._references
        revived = sum(1 for block in shared if references[block] == 0)
        if fresh + revived + headroom > self.available:
            return None
        for block in shared:
            if references[block] == 0:
                self._unlink(block)
                self._cached -= 1
            references[block] += 1
        self.available -= revived
        return [*shared, *(self._take() for _ in range(fresh))]

    def take(self) -> int | None:
        """One block of one's own, or None while all are used."""
        return self._take() if self.available else None

    def publish(self, block: int, digest: bytes) -> None:
        """`block`, which is referenced and computed, can be found under `digest` from now on.

        When another block holds the same prefix, that one stays the known one.
        """
        if digest not in self._block_of and self._digest_of[block] is None:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def forget(self, blocks: Iterable[int]) -> None:
        """What these referenced blocks hold must not be found again."""
        for block in blocks:
            digest = self._digest_of[block]
            if digest is not None:
                del self._block_of[digest]
                self._digest_of[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each block of a sequence, given in the sequence's order.

        The end of a prefix is less likely to be asked for than its start, so it becomes the first to go;
        blocks that hold no prefix go before all others.
        """
        references = self._references
        for block in reversed(blocks):
            references[block] -= 1
            if references[block]:
                continue
            self.available += 1
            if self._digest_of[block] is None:
                self._link(block, self.num_blocks, self._next[self.num_blocks])
            else:
                self._cached += 1
                self._link(block, self._previous[self.num_blocks], self.num_blocks)

    def _take(self) -> int:
        block = self._next[self.num_blocks]
        self._unlink(block)
        self.available -= 1
        self._references[block] = 1
        digest = self._digest_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._digest_of[block] = None
            self._cached -= 1
        return block

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before

    def _link(self, block: int, before: int, after: int) -> None:
        self._previous[block], self._next[block] = before, after
        self._next[before] = self._previous[after] = block

    def check(self, tables: Iterable[Sequence[int]]) -> PoolCheck:
        """Compare the books with the block tables of all sequences; O(blocks), for idle times and tests.

        A leaked block is one with more references than tables name it. Without tables nobody is left to keep a promise.
        """
        expected = [0] * self.num_blocks
        for table in tables:
            for block in table:
                expected[block] += 1
        faults = [*self._list_faults(), *self._index_faults()]
        if self._promises and not any(expected):
            faults.append(f"{len(self._promises)} prefixes are promised by nobody")
        leaked = 0
        for block, (held, named) in enumerate(zip(self._references, expected, strict=True)):
            leaked += held > named
            if held < named:
                faults.append(f"block {block}: {named} tables name it, {held} references are counted")
        return PoolCheck(leaked, tuple(faults))

    def _list_faults(self) -> Iterable[str]:
        linked: set[int] = set()
        block = self._next[self.num_blocks]
        before = self.num_blocks
        while block != self.num_blocks:
            if block in linked:
                yield f"block {block}: twice in the free list"
                return
            if self._previous[block] != before:
                yield f"block {block}: its back link is {self._previous[block]}, not {before}"
            linked.add(block)
            before, block = block, self._next[block]
        idle = {block for block, references in enumerate(self._references) if references == 0}
        if linked != idle:
            yield f"free list and reference counts disagree on blocks {sorted(linked ^ idle)[:8]}"
        if len(linked) != self.available:
            yield f"{self.available} blocks counted as available, {len(linked)} in the free list"

    def _index_faults(self) -> Iterable[str]:
        named = {digest: block for block, digest in enumerate(self._digest_of) if digest is not None}
        if named != self._block_of:
            yield "prefix index and blocks disagree"
        cached = sum(1 for block in named.values() if self._references[block] == 0)
        if cached != self._cached:
            yield f"{self._cached} blocks counted as cached, {cached} found"
