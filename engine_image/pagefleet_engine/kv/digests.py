"""What a block holds, as a 128-bit hash over everything up to its end.

Keys and values of a token depend on all tokens before it, so a block is named by the chain: its 16 tokens
and its predecessor's name (as in vLLM's automatic prefix caching). Salt and adapter start the chain, so equal
text under different salts, or computed with different adapters, shares nothing.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from pagefleet_api.sizing import BLOCK_TOKENS

DIGEST_BYTES = 16
_pack_adapter = struct.Struct("<I").pack
_pack_tokens = struct.Struct(f"<{BLOCK_TOKENS}I").pack


def root(cache_salt: str, adapter: int | None = None) -> bytes:
    """The digest before the first block; `adapter` is one of the launch's, None the model itself."""
    if adapter is None:
        return blake2b(cache_salt.encode(), digest_size=DIGEST_BYTES, person=b"pagefleet salt").digest()
    salted = _pack_adapter(adapter) + cache_salt.encode()
    return blake2b(salted, digest_size=DIGEST_BYTES, person=b"pagefleet lora").digest()


def extend(digests: list[bytes], first: bytes, token_ids: Sequence[int], blocks: int) -> None:
    """Lengthen `digests` in place until it names the first `blocks` blocks of `token_ids`; `first` is their `root`.

    Those blocks must be full; token ids are 0 .. 2³² - 1.
    """
    if len(digests) >= blocks:
        return
    parent = digests[-1] if digests else first
    for start in range(len(digests) * BLOCK_TOKENS, blocks * BLOCK_TOKENS, BLOCK_TOKENS):
        packed = _pack_tokens(*token_ids[start : start + BLOCK_TOKENS])
        parent = blake2b(parent + packed, digest_size=DIGEST_BYTES).digest()
        digests.append(parent)
