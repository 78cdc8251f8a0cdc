import pytest

from pagefleet_cli.simulation import Moment, agreement


def _timeline(*changes: tuple[float, int]) -> list[Moment]:
    return [Moment(when_s, number, number, "x") for when_s, number in changes]


def test_time_in_which_numbers_are_a_step_apart_agrees() -> None:
    real, predicted = _timeline((0, 1), (10, 6), (80, 1)), _timeline((0, 1), (20, 6), (85, 2))
    assert list(agreement(predicted, real, 100)) == pytest.approx([0.85, 0.85])
    assert agreement(predicted, real, 100, within=0).desired == pytest.approx(0.70)
    assert list(agreement(real, real, 100, within=0)) == [1.0, 1.0]


def test_only_what_both_cover_is_compared() -> None:
    late = _timeline((50, 6))
    assert agreement(_timeline((0, 1), (60, 6)), late, 100).desired == pytest.approx(0.8)
    with pytest.raises(ValueError, match="nothing can be compared until 40 s"):
        agreement(_timeline((0, 1)), late, 40)
