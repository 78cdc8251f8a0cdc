"""What is sent to be applied."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.apiserver.apply_body import apply_body

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.dictionaries(TEXTS, st.one_of(TEXTS, st.lists(TEXTS, max_size=3), st.integers(), st.none())))
def test_it_is_the_same_as_json(manifest: dict[str, Any]) -> None:
    assert json.loads(apply_body(manifest)) == manifest
    assert all(character < "\x7f" or character > "\uffff" for character in apply_body(manifest))


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("😀", '"😀"'),
        ("\xe9", '"\\u00e9"'),
        ("\u2028", '"\\u2028"'),
        ("\ufeff", '"\\ufeff"'),
        ("\\ud83d", '"\\\\ud83d"'),
    ],
)
def test_yaml_gets_no_pair_of_escapes_and_no_line_break_of_its_own(text: str, sent: str) -> None:
    assert apply_body({"a": text}) == f'{{"a": {sent}}}'
