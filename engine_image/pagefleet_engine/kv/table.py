"""The block table of one sequence."""

from collections.abc import Sequence

from pagefleet_api.sizing import BLOCK_TOKENS, blocks_for
from pagefleet_engine.kv import digests
from pagefleet_engine.kv.pool import BlockPool

LEAST_AWAITED_TOKENS = 256
"""So much of a prompt is worth waiting for while others compute it; less would be computed again before it comes."""


class BlockTable:
    """The blocks that one sequence references, in the order of its positions.

    `blocks` is a list that only grows, and is replaced by another when the blocks are given back, so a step plan
    can carry it as it is; `capacity_tokens` is the number of positions that it covers. One that is not `shared`
    takes nothing from the prefix cache and puts nothing there.
    """

    __slots__ = (
        "_digests",
        "_pool",
        "_promised_blocks",
        "_published_blocks",
        "_root",
        "_shared",
        "blocks",
        "capacity_tokens",
    )

    def __init__(self, pool: BlockPool, cache_salt: str, *, adapter: int | None = None, shared: bool = True) -> None:
        """`adapter` computes the blocks, None the model itself."""
        self._pool = pool
        self._root = digests.root(cache_salt, adapter)
        self._shared = shared
        self._digests: list[bytes] = []
        self._published_blocks = 0
        self._promised_blocks = 0
        """Up to here, from the published ones on, others may wait for what this sequence computes."""
        self.blocks: list[int] = []
        self.capacity_tokens = 0

    def awaits(self, token_ids: Sequence[int], readable_tokens: int) -> bool:
        """Whether others are computing much of what follows what the prefix cache has of these tokens.

        Arguments as of `fill`, which takes it from there once it is computed.
        """
        readable = self._readable(token_ids, readable_tokens)
        return self._pool.promises(readable, len(self._pool.match(readable)), LEAST_AWAITED_TOKENS // BLOCK_TOKENS)

    def known(self, token_ids: Sequence[int], readable_tokens: int) -> int:
        """How many of these tokens the prefix cache has now; arguments as of `fill`."""
        return len(self._pool.match(self._readable(token_ids, readable_tokens))) * BLOCK_TOKENS

    def fill(self, token_ids: Sequence[int], readable_tokens: int, headroom_blocks: int) -> int | None:
        """Give an empty table blocks for all of `token_ids`, known prefixes first.

        Of the first `readable_tokens` tokens whole blocks may come from the prefix cache;
        `headroom_blocks` blocks must stay available. Returns how many tokens need not be computed, or None
        while the pool cannot hold the rest; nothing changes unless all fit.
        """
        readable = self._readable(token_ids, readable_tokens)
        shared = self._pool.match(readable)
        blocks = self._pool.reserve(shared, blocks_for(len(token_ids)) - len(shared), headroom_blocks)
        if blocks is None:
            return None
        self.blocks = blocks
        self.capacity_tokens = len(blocks) * BLOCK_TOKENS
        self._published_blocks, self._promised_blocks = len(shared), len(readable)
        self._pool.promise(readable[len(shared) :])
        return len(shared) * BLOCK_TOKENS

    def _readable(self, token_ids: Sequence[int], readable_tokens: int) -> list[bytes]:
        """The names of the whole blocks among the first `readable_tokens` tokens."""
        blocks = readable_tokens // BLOCK_TOKENS if self._shared else 0
        digests.extend(self._digests, self._root, token_ids, blocks)
        return self._digests[:blocks]

    def grow(self) -> bool:
        """Add one block; False while the pool has none."""
        block = self._pool.take()
        if block is None:
            return False
        self.blocks.append(block)
        self.capacity_tokens += BLOCK_TOKENS
        return True

    def publish(self, token_ids: Sequence[int], computed_tokens: int) -> None:
        """Let others find the blocks that the first `computed_tokens` tokens fill."""
        if not self._shared:
            return
        full_blocks = computed_tokens // BLOCK_TOKENS
        digests.extend(self._digests, self._root, token_ids, full_blocks)
        for index in range(self._published_blocks, full_blocks):
            self._pool.publish(self.blocks[index], self._digests[index])
        self._withdraw(full_blocks)
        self._published_blocks = full_blocks

    def _withdraw(self, blocks: int) -> None:
        """Nobody needs to wait for the first `blocks` blocks any more."""
        self._pool.withdraw(self._digests[self._published_blocks : min(blocks, self._promised_blocks)])

    def release(self) -> None:
        """Give all blocks back; what was published stays findable until its block is taken."""
        self._withdraw(self._promised_blocks)
        self._pool.release(self.blocks)
        self.blocks = []
        self.capacity_tokens = 0
        self._published_blocks = self._promised_blocks = 0

    def disown(self) -> None:
        """Let nobody read these blocks again: what they hold may be wrong."""
        self._pool.forget(self.blocks)
