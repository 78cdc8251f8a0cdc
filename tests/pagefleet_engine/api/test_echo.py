"""A prompt as `echo` shows it."""

import time
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.api.echo import Echo, echo
from tests.pagefleet_engine.api.words import Words


class Decoding(Words):
    """Words with a decoder; `drops_space` as SentencePiece ones do with the first."""

    def __init__(self, tokens: Iterable[bytes], special: Iterable[int] = (), *, drops_space: bool = False) -> None:
        super().__init__(tokens, special)
        self.drops_space = drops_space

    def decode(self, token_ids: Iterable[int], skip_special: bool = False) -> str:
        kept = (i for i in token_ids if not (skip_special and i in self.special))
        text = b"".join(self.tokens[i] for i in kept).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.drops_space else text


MARKED = Decoding([b"<s>", b"hi", b"<turn>", b" you"], special=[0, 2])
SPACED = Decoding([b"<s>", b" hi", b" you", b" "], special=[0], drops_space=True)
SPLIT = Decoding(["世".encode()[:1], "世".encode()[1:], b"\xff", b"a"])


@pytest.mark.parametrize(
    ("words", "prompt", "token_ids", "expected"),
    [
        (MARKED, "hi you", (0, 1, 3), Echo("hi you", (0, 0, 2))),
        (MARKED, "hi<turn> you", (0, 1, 2, 3), Echo("hi<turn> you", (0, 0, 2, 8))),
        (MARKED, (0, 1, 2, 3), (0, 1, 2, 3), Echo("hi you", (0, 0, 2, 2))),
        (SPACED, "hi you", (0, 1, 2), Echo("hi you", (0, 0, 2))),
        (SPACED, " hi", (0, 3, 1), Echo(" hi", (0, 0, 0))),
        (SPACED, (0, 1, 2), (0, 1, 2), Echo("hi you", (0, 0, 2))),
        (SPACED, (2, 1), (2, 1), Echo("you hi", (0, 3))),
        (SPLIT, "世a", (0, 1, 3), Echo("世a", (0, 0, 1))),
        (SPLIT, (2, 3), (2, 3), Echo("\ufffda", (0, 1))),
        (SPLIT, (0, 3), (0, 3), Echo("\ufffda", (0, 0))),
        (SPLIT, (3, 0), (3, 0), Echo("a\ufffd", (0, 1))),
        # A tokenizer that rewrites its text: what it made of it.
        (SPLIT, "Aa", (3, 3), Echo("aa", (0, 1))),
        (SPLIT, "aab", (3, 3), Echo("aa", (0, 1))),
    ],
)
def test_text_and_offsets_agree(
    words: Decoding, prompt: str | tuple[int, ...], token_ids: tuple[int, ...], expected: Echo
) -> None:
    assert echo(prompt, token_ids, words) == expected


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=12), st.sets(st.integers(0, 11)))
def test_offsets_of_any_tokens_rise_and_lie_in_the_text(pieces: list[bytes], special: set[int]) -> None:
    words = Decoding(pieces, special)
    token_ids = tuple(range(len(pieces)))
    found = echo(token_ids, token_ids, words)
    assert found.text == words.decode(token_ids, skip_special=True)
    assert list(found.offsets) == sorted(found.offsets)
    assert all(0 <= offset <= len(found.text) for offset in found.offsets)


@given(st.text(min_size=1, max_size=20))
def test_a_text_that_its_tokens_spell_comes_back_with_each_tokens_place(text: str) -> None:
    words = Decoding([bytes([byte]) for byte in text.encode()])
    found = echo(text, range(len(words.tokens)), words)
    assert found.text == text
    assert found.offsets == tuple(
        len(text.encode()[:place].decode("utf-8", "ignore")) for place in range(len(words.tokens))
    )


def test_the_time_grows_with_the_prompt_and_not_with_its_square() -> None:
    words, count = Decoding([b" a long word indeed"]), 100_000
    begin = time.process_time()
    assert len(echo((0,) * count, (0,) * count, words).offsets) == count
    assert time.process_time() - begin < 2
