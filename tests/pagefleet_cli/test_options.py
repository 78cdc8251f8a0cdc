"""Numbers and times of options: whatever is given, it is read, or told with what the option takes."""

from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_cli import options

_OPTIONS = {
    "time": options.time("w", 0.1),
    "number": options.number("w", "GPU hours such as 2.5"),
    "whole": options.whole("w", "a whole number of pods", 1, 10_000),
    "any": options.whole("w", "a whole number"),
}
_TEXTS = st.one_of(
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.from_regex(r"\A([0-9]{1,3}h)?([0-9]{1,3}m)?([0-9]{1,3}s)?\Z"),
    st.sampled_from(("1" * 400, "1" * 5000, "1e400", "-0", "1_000", "\u0663")),
)


@pytest.mark.parametrize("name", _OPTIONS)
@given(text=_TEXTS)
def test_a_text_is_read_or_told_with_what_the_option_takes(name: str, text: str) -> None:
    try:
        found = _OPTIONS[name].parser(text)
    except typer.BadParameter as error:
        assert repr(text) in str(error)
        assert "; write " in str(error)
    else:
        assert abs(found) != float("inf")
        assert name == "any" or found >= {"time": 0.1, "number": 0, "whole": 1}[name]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("500ms", 0.5)]
)
def test_a_time_is_seconds_or_a_duration(text: str, seconds: float) -> None:
    assert _OPTIONS["time"].parser(text) == seconds


@pytest.mark.parametrize("default", [1, 250])
def test_a_default_is_read_as_what_it_is(default: Any) -> None:
    assert _OPTIONS["whole"].parser(default) == default
