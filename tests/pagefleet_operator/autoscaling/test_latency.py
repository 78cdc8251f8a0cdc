"""Time to first token may raise the number, by what requests waited for since the fleet last changed."""

from dataclasses import replace
from math import inf

from pagefleet_api.scaling import MetricType
from pagefleet_operator.autoscaling import Memory, Outcome, PodLoad, decide
from pagefleet_operator.autoscaling.values import Mark
from pagefleet_operator.facts.histogram import Histogram
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, UNPLACED, at, calm, fleet, load, ready

POLICY = replace(DEFAULTS, waiting_target=None, kv_target=None, ttft_target_s=0.5)


def timed(name: str, quick: int, slow: int) -> PodLoad:
    """A ready pod whose first tokens took at most 0.5 s, or up to 2 s."""
    return PodLoad(
        name,
        True,
        True,
        load(running=6),
        1.0,
        ttft=Histogram((0.5, 2.0, inf), (quick, quick + slow, quick + slow), 1.0),
    )


def marked(*pods: PodLoad, desired: int | None = None) -> Memory:
    """A memory that has looked at these pods."""
    number = len(pods) if desired is None else desired
    return decide(POLICY, fleet(*pods), calm(number), at(0)).memory


def later(memory: Memory, *pods: PodLoad, now_s: float = 30) -> Outcome:
    return decide(POLICY, fleet(*pods, current=memory.desired), memory, at(now_s))


def test_first_tokens_that_take_too_long_ask_for_more_pods() -> None:
    outcome = later(marked(timed("a", 100, 0), timed("b", 0, 0)), timed("a", 130, 10), timed("b", 60, 0))
    assert (outcome.desired, outcome.decision.reason) == (4, "TimeToFirstToken")
    assert outcome.decision.message == "TimeToFirstToken asks for 4: p95 1.25 s, target 0.5 s"
    assert outcome.targets == "ttft 1250/500 ms"
    assert outcome.measures and outcome.watch_closely
    (reading,) = outcome.decision.readings
    assert (reading.type, reading.value, reading.target, reading.proposal) == ("TimeToFirstToken", "1.25 s", "0.5 s", 4)


def test_what_requests_waited_for_before_a_change_asks_for_nothing_again() -> None:
    raised = later(marked(timed("a", 100, 0)), timed("a", 100, 40))
    assert raised.desired == 2
    pending = later(raised.memory, timed("a", 100, 80), UNPLACED, now_s=40)
    assert pending.desired == 2
    there = later(pending.memory, timed("a", 100, 120), timed("b", 0, 0), now_s=50)
    assert there.memory.marks == (Mark(1050.0, (("a", timed("a", 100, 120).ttft), ("b", timed("b", 0, 0).ttft))),)  # type: ignore[arg-type]
    calmed = later(there.memory, timed("a", 150, 120), timed("b", 50, 0), now_s=60)
    assert calmed.desired == 2


def test_of_few_requests_nothing_is_said() -> None:
    outcome = later(marked(timed("a", 100, 0)), timed("a", 100, 19))
    assert outcome.desired == 1
    assert outcome.targets == "ttft ?/500 ms"
    assert outcome.decision.readings[0].value is None


def test_a_time_near_its_target_changes_nothing() -> None:
    target = replace(POLICY, ttft_target_s=1.5)
    memory = decide(target, fleet(timed("a", 0, 0)), calm(1), at(0)).memory
    assert decide(target, fleet(timed("a", 50, 10)), memory, at(30)).desired == 1


def test_an_engine_that_began_anew_counts_from_its_beginning() -> None:
    outcome = later(marked(timed("a", 500, 500)), timed("a", 0, 30))
    assert outcome.decision.readings[0].proposal == 2


def test_a_pod_that_took_anothers_place_counts_from_its_beginning() -> None:
    outcome = later(marked(timed("a", 100, 0), timed("b", 0, 0)), timed("a", 100, 0), timed("c", 0, 30))
    assert outcome.decision.readings[0].value == "1.93 s"


def test_short_times_never_lower_the_number() -> None:
    outcome = later(marked(*[timed(name, 0, 0) for name in "abc"]), *[timed(name, 90, 0) for name in "abc"])
    assert outcome.decision.readings[0].proposal == 3


def test_the_window_is_a_minute_in_steps_of_ten_seconds() -> None:
    memory = marked(timed("a", 0, 0))
    for now_s in range(2, 100, 2):
        memory = later(memory, timed("a", now_s, 0), now_s=now_s).memory
    assert [mark.when_s - 1000 for mark in memory.marks] == [40, 50, 60, 70, 80, 90]


def test_without_engines_that_tell_there_is_no_reading() -> None:
    outcome = later(marked(timed("a", 0, 0)), ready(0, 4), now_s=2)
    assert (outcome.desired, outcome.memory.marks) == (1, ())
    assert outcome.decision.readings[0].type == MetricType.TIME_TO_FIRST_TOKEN
    again = later(outcome.memory, ready(0, 4), now_s=4)
    assert again.decision.readings[0].value is None
