"""Bytes of tokens to text, for every way of splitting them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.api.detokenizer import Detokenizer

TEXTS = st.text() | st.text(alphabet="A 世界👩‍🚀น้ำ삼겹살éü\u0301")


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


def decoded(pieces: list[bytes]) -> list[str]:
    detokenizer = Detokenizer()
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.finish()]


@given(TEXTS, st.lists(st.integers(0, 1000)))
def test_any_split_of_a_text_gives_the_text_without_replacement_characters(text: str, cuts: list[int]) -> None:
    assert "".join(decoded(split(text.encode(), cuts))) == text


TOKENS = st.sampled_from([b"a", b"\xe4", b"\xe4\xb8", b"\xf0\x9f\x91", b"\x96", b"\xff", "世".encode(), b""])


@given(st.lists(TOKENS, max_size=12))
def test_tokens_that_begin_end_or_break_a_character_give_what_decoding_them_at_once_gives(tokens: list[bytes]) -> None:
    assert "".join(decoded(tokens)) == b"".join(tokens).decode("utf-8", "replace")


@given(st.binary(), st.lists(st.integers(0, 1000)))
def test_any_split_of_any_bytes_gives_what_decoding_them_at_once_gives(data: bytes, cuts: list[int]) -> None:
    assert "".join(decoded(split(data, cuts))) == data.decode("utf-8", "replace")


def test_one_byte_at_a_time_shows_each_character_when_it_is_complete() -> None:
    data = "a世👩".encode()
    assert decoded([data[i : i + 1] for i in range(len(data))]) == ["a", "", "", "世", "", "", "", "👩", ""]


def test_an_unfinished_character_at_the_end_becomes_one_replacement_character() -> None:
    assert decoded(["世".encode()[:2]]) == ["", "\ufffd"]
