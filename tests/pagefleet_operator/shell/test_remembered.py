"""What is remembered of the longest ago is forgotten first."""

from pagefleet_operator.remembered import Remembered


def test_of_too_many_the_one_that_was_told_longest_ago_goes() -> None:
    known = Remembered[str, int](2)
    known["a"], known["b"], known["a"], known["c"] = 1, 2, 3, 4
    assert known == {"a": 3, "c": 4}
