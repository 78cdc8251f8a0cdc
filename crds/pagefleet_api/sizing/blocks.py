"""How much memory keys and values take, and how many tokens fit.

Source: each token keeps one key and one value vector per layer and KV head
(Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention", 2023, section 2).
"""

from dataclasses import dataclass

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class KvShape:
    """What of a model decides the size of its cache."""

    layers: int
    kv_heads: int
    head_size: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.element_bytes

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block of `BLOCK_TOKENS` tokens."""
        return BLOCK_TOKENS * self.bytes_per_token

    def bytes_for(self, tokens: int) -> int:
        """Bytes that `tokens` tokens take."""
        return tokens * self.bytes_per_token

    def blocks_in(self, budget_bytes: int) -> int:
        """Whole blocks that `budget_bytes` hold."""
        return budget_bytes // self.bytes_per_block


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)
