"""The raw bytes of every token of a vocabulary.

Byte-level BPE writes each byte as one printable character (Radford et al. 2019, the GPT-2 code's
`bytes_to_unicode`); SentencePiece writes a space as U+2581 and falls back to tokens such as `<0xE4>`.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer

from pagefleet_engine.models.errors import ModelUnsupported

WORD_START = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTES = 256


def table(tokenizer: Tokenizer) -> tuple[list[bytes], bool]:
    """Bytes by token id, and whether decoding drops the space before the first word.

    Ids without a token have no bytes. Raises ModelUnsupported for a tokenizer of another kind.
    """
    kinds = _decoders(tokenizer)
    names = [kind["type"] for kind in kinds]
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    result = [b""] * (max(vocabulary.values(), default=-1) + 1)
    if "ByteLevel" in names:
        to_byte = _byte_characters()
        for text, token_id in vocabulary.items():
            result[token_id] = _byte_level(text, to_byte)
        drops_space = False
    elif "ByteFallback" in names or "Metaspace" in names:
        for text, token_id in vocabulary.items():
            result[token_id] = _sentence_piece(text)
        drops_space = _drops_first_space(kinds)
    else:
        raise ModelUnsupported(
            f"the tokenizer's decoder is {names or 'absent'}; this engine needs ByteLevel, ByteFallback or "
            "Metaspace, whose tokens have exact bytes"
        )
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        result[token_id] = token.content.encode()
    return result, drops_space


def _decoders(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The decoder's parts as the library saves them."""
    if tokenizer.decoder is None:
        return []
    saved: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return list(saved["decoders"]) if saved["type"] == "Sequence" else [saved]


def _drops_first_space(kinds: list[dict[str, Any]]) -> bool:
    return any(
        (kind["type"] == "Strip" and kind["content"] == " " and kind["start"] > 0)
        or (kind["type"] == "Metaspace" and kind["prepend_scheme"] != "never")
        for kind in kinds
    )


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the rest for U+0100 and up."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(_BYTES) if byte not in printable]
    shifted = {chr(_BYTES + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


def _byte_level(text: str, to_byte: dict[str, int]) -> bytes:
    try:
        return bytes([to_byte[character] for character in text])
    except KeyError:
        return text.encode()


def _sentence_piece(text: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text.replace(WORD_START, " ").encode()
