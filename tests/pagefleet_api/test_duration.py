import pytest

from pagefleet_api import duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("1m5s250ms", 65.25), ("0s", 0)]
)
def test_a_duration_is_the_sum_of_its_parts(text: str, seconds: float) -> None:
    assert duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "1s1m", "1.5s", "5d"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; .* '90s'"):
        duration.parse(text)
