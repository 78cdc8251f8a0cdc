"""A prompt as `echo` shows it: its text, and where in that text each token begins; pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from pagefleet_engine.api.choice import Vocabulary
from pagefleet_engine.api.detokenizer import Detokenizer
from pagefleet_engine.api.requests import Prompt


class Decoder(Vocabulary, Protocol):
    """What an echo needs of the model's tokenizer."""

    def decode(self, token_ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of whole token sequences."""
        ...


class Echo(NamedTuple):
    """The text, and the characters of it before each token; a token inside a character begins before it."""

    text: str
    offsets: tuple[int, ...]


def echo(prompt: Prompt, token_ids: Sequence[int], decoder: Decoder) -> Echo:
    """The echo of a prompt that has these tokens.

    A prompt of text comes back as it was sent when its tokens spell it, with markup written in it and without
    what the tokenizer put around it. Otherwise (token ids, or a tokenizer that rewrites text) the text is that
    of the tokens, without markup.
    """
    if isinstance(prompt, str):
        spelled = _spelled(prompt.encode(), token_ids, decoder)
        if spelled is not None:
            return Echo(prompt, _offsets(spelled, dropped_chars=0))
    pieces = [b"" if decoder.is_special(token_id) else decoder.token_bytes(token_id) for token_id in token_ids]
    text = decoder.decode(token_ids, skip_special=True)
    # Decoding a SentencePiece text drops the space that its first word begins with.
    dropped = len(b"".join(pieces).decode("utf-8", "replace")) - len(text)
    return Echo(text, _offsets(pieces, dropped_chars=dropped))


def _spelled(text: bytes, token_ids: Sequence[int], vocabulary: Vocabulary) -> list[bytes] | None:
    """The part of `text` that each token stands for, or None when the tokens do not spell it."""
    pieces: list[bytes] = []
    place = 0
    for token_id in token_ids:
        piece = vocabulary.token_bytes(token_id)
        if place == 0 and not text.startswith(piece):
            piece = piece.removeprefix(b" ")
        if not text.startswith(piece, place):
            if not vocabulary.is_special(token_id):
                return None
            piece = b""
        pieces.append(piece)
        place += len(piece)
    return pieces if place == len(text) else None


def _offsets(pieces: Iterable[bytes], *, dropped_chars: int) -> tuple[int, ...]:
    detokenizer = Detokenizer()
    offsets: list[int] = []
    chars = -dropped_chars
    for piece in pieces:
        offsets.append(max(chars, 0))
        chars += len(detokenizer.push(piece))
    return tuple(offsets)
