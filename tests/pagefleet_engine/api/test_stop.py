"""Stop strings over text that comes in pieces."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.api.stop import Pattern, StopMatcher

ALPHABET = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)


def matcher_of(stops: list[str]) -> StopMatcher:
    return StopMatcher([Pattern.of(each) for each in stops])


def run(text: str, stops: list[str], cuts: list[int]) -> tuple[str, bool]:
    """The shown text and whether it was stopped, with `text` cut at `cuts`."""
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    matcher, shown = matcher_of(stops), ""
    for a, b in pairwise(edges):
        matched = matcher.push(text[a:b])
        shown += matched.text
        if matched.stopped:
            return shown, True
    return shown + matcher.finish(), False


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """By definition: read character by character until the text so far ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(ALPHABET, STOPS, st.lists(st.integers(0, 100)))
def test_any_split_gives_the_text_before_the_stop_that_is_complete_first(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    assert run(text, stops, cuts) == expected(text, stops)


@given(ALPHABET, STOPS)
def test_nothing_of_a_stop_string_is_shown_before_it_is_complete(text: str, stops: list[str]) -> None:
    final, _ = expected(text, stops)
    matcher, shown = matcher_of(stops), ""
    for character in text:
        matched = matcher.push(character)
        shown += matched.text
        assert final.startswith(shown)
        if matched.stopped:
            break


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("ABCDEFGHIJK", ["DEFGHIJ"], "ABC"),
        ("xaab", ["aab", "ab"], "x"),
        ("xab", ["aab", "ab"], "x"),
        ("abcd", ["abcd", "bc"], "a"),
        ("no stop", [], "no stop"),
        ("ends with D", ["DE"], "ends with D"),
    ],
)
def test_overlapping_stops_end_the_text_where_the_first_one_is_complete(
    text: str, stops: list[str], shown: str
) -> None:
    for size in (1, 2, 3, len(text)):
        assert run(text, stops, list(range(0, len(text), size)))[0] == shown


def test_a_suffix_that_may_become_a_stop_is_held_and_released_when_it_does_not() -> None:
    matcher = matcher_of(["DEFGHIJ"])
    assert [matcher.push(piece).text for piece in ("AB", "C DE", "FG", "X")] == ["AB", "C ", "", "DEFGX"]


def test_a_character_takes_few_comparisons_however_long_the_stops_and_what_is_held() -> None:
    text = "ab" * 500
    compared = 0

    class Counting(str):
        __slots__ = ()

        def __getitem__(self, place: Any) -> str:
            nonlocal compared
            compared += 1
            return super().__getitem__(place)

    stops = [f"{text}{end}" for end in "cdefghijklmnopq"] + [f"a{text}"]
    patterns = [Pattern(Counting(each), Pattern.of(each).fallbacks) for each in stops]
    matcher = StopMatcher(patterns)
    for character in text:
        matcher.push(character)
    assert matcher.finish() == text
    assert compared <= 4 * len(stops) * len(text), "comparisons grow with the length of what was matched"
