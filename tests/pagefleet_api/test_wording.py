"""Numbers as people read them."""

import pytest

from pagefleet_api.wording import brief, counted, percent, place, shown, some, without_middle


@pytest.mark.parametrize(("number", "words"), [(0, "0 pods"), (1, "1 pod"), (2, "2 pods")])
def test_one_thing_is_no_several(number: int, words: str) -> None:
    assert counted(number, "pod") == words


def test_the_first_of_many_are_told_and_the_others_counted() -> None:
    assert some(["a"]) == "a"
    assert some(["a", "b", "c"], "; ") == "a; b; c"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.mark.parametrize(("share", "decimals", "words"), [(0.75, 0, "75 %"), (3.3, 0, "330 %"), (0.0123, 1, "1.2 %")])
def test_a_share_is_told_in_per_cent(share: float, decimals: int, words: str) -> None:
    assert percent(share, decimals) == words


def test_a_path_is_written_as_people_write_it() -> None:
    assert place(["volumes", 0, "name"], "spec") == "spec.volumes[0].name"
    assert place(["spec", "volumes"]) == "spec.volumes"
    assert place([]) == ""


@pytest.mark.parametrize("value", ["x" * 10**6, ["x" * 10**6] * 9, {"x" * 10**6: 1}, "\n" * 999, 10**4000])
def test_a_long_value_is_shown_short_and_on_one_line(value: object) -> None:
    assert len(shown(value)) <= 320 and "\n" not in shown(value)
    assert shown(value)[0] == repr(value)[0]


def test_what_is_too_long_keeps_both_ends() -> None:
    assert without_middle("abcdefghij", 10) == "abcdefghij"
    assert without_middle("abcdefghijk", 10) == "abcdef…ijk"
    assert brief("a\nb\ud800", 10) == r"a\nb\ud800"
