import pytest

from pagefleet_cli.simulation import Moment, Refusal, Refused, Request, Run, Trace, summarise
from pagefleet_cli.simulation.summary import Quantiles, direction_changes


def moments(*desired: int) -> tuple[Moment, ...]:
    """One a minute."""
    return tuple(Moment(60.0 * place, number, number, "x") for place, number in enumerate(desired))


@pytest.mark.parametrize(
    ("desired", "turns"), [((1,), 0), ((1, 2, 3), 0), ((1, 2, 2, 1), 1), ((1, 3, 1, 3), 2), ((3, 1, 1, 2, 4, 3), 2)]
)
def test_turns_between_up_and_down_are_counted(desired: tuple[int, ...], turns: int) -> None:
    assert direction_changes(moments(*desired)) == turns


def test_quantiles_are_nearest_ranks() -> None:
    assert Quantiles.of([float(each) for each in range(100, 0, -1)]) == Quantiles(p50=50, p95=95, p99=99)
    assert Quantiles.of([]) == Quantiles(p50=None, p95=None, p99=None)


def test_a_minute_is_lost_when_more_than_one_in_twenty_wait_too_long() -> None:
    requests = tuple(Request(minute * 60.0 + place, 1, 1) for minute in range(3) for place in range(20))
    first_s: list[float | None] = [0.1] * 60
    first_s[0] = 9.0  # one of twenty
    first_s[20] = first_s[21] = 9.0  # two
    first_s[40] = first_s[41] = None  # two refused
    refusals = (Refused(Refusal.QUEUE_FULL, 2, 1024),)
    run = Run(Trace(requests), moments(1, 2), (0.0,) * 58, tuple(first_s), 58, refusals, 0, 7200.0, 180.0)
    found = summarise("p", run, gpus_per_pod=2, gpu_price=1.5, slo_s=1.0)
    assert [minute.lost for minute in found.minutes] == [False, True, True]
    assert (found.slo_violation_minutes, found.gpu_hours, found.cost) == (2, 4.0, 6.0)
    assert (found.refused, found.refusals) == (2, refusals)
    assert (found.most_replicas, found.mean_replicas) == (2, 40.0)
    assert found.minutes[2].first_token_p95_s == 0.1


def test_a_trace_without_an_end_has_its_first_number() -> None:
    run = Run(Trace(()), moments(2), (), (), 0, (), 0, 0.0, 0.0)
    found = summarise("p", run, gpus_per_pod=1, gpu_price=None, slo_s=1.0)
    assert (found.mean_replicas, found.cost, found.minutes) == (2.0, None, ())
