from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pagefleet_api.reasons import Reason
from pagefleet_api.schedules import Schedule as Given
from pagefleet_api.service import InferenceService, InvalidService
from pagefleet_operator.autoscaling import decide
from pagefleet_operator.autoscaling.schedules import Schedule, bounds
from pagefleet_operator.facts.observed import Now
from tests.pagefleet_operator.autoscaling.build import DEFAULTS, calm, fleet, ready


def schedule(**given: Any) -> Schedule:
    return Schedule.of(Given.model_validate({"name": "s", "start": "07:30", "end": "19:00", "minReplicas": 2, **given}))


OFFICE = schedule(name="office", timezone="Europe/Berlin", days=["Mon-Fri"])
NIGHT = schedule(name="night", timezone="Europe/Berlin", days=["Fri", "Sat"], start="22:00", end="06:00")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("2026-01-05 06:29", False),
        ("2026-01-05 06:30", True),
        ("2026-01-05 17:59", True),
        ("2026-01-05 18:00", False),
        ("2026-01-04 12:00", False),
        ("2026-07-06 05:30", True),
        ("2026-07-06 17:00", False),
    ],
)
def test_a_schedule_holds_by_the_wall_clock_of_its_zone_in_winter_and_in_summer(when: str, holds: bool) -> None:
    assert OFFICE.holds(utc(when)) is holds


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("2026-01-02 20:59", False),
        ("2026-01-02 21:00", True),
        ("2026-01-03 04:59", True),
        ("2026-01-03 05:00", False),
        ("2026-01-03 21:00", True),
        ("2026-01-04 04:59", True),
        ("2026-01-04 21:00", False),
        ("2026-01-02 04:00", False),
    ],
)
def test_a_schedule_across_midnight_belongs_to_the_day_on_which_it_begins(when: str, holds: bool) -> None:
    assert NIGHT.holds(utc(when)) is holds


def test_a_time_that_the_clock_skips_counts_as_soon_as_it_is_passed() -> None:
    gap = schedule(timezone="Europe/Berlin", start="02:30", end="04:00")
    held = [minute for minute in range(180) if gap.holds(datetime(2026, 3, 29, minute // 60, minute % 60, tzinfo=UTC))]
    assert (held[0], held[-1], len(held)) == (60, 119, 60)


def test_a_time_that_comes_twice_counts_twice() -> None:
    twice = schedule(timezone="Europe/Berlin", start="02:30", end="03:00")
    held = [m for m in range(180) if twice.holds(datetime(2026, 10, 25, m // 60, m % 60, tzinfo=UTC))]
    assert held == [*range(30, 60), *range(90, 120)]


def test_a_night_is_an_hour_shorter_in_spring_and_longer_in_autumn() -> None:
    def hours(begin: str) -> float:
        first = int(utc(begin).timestamp()) // 60
        return sum(NIGHT.holds(datetime.fromtimestamp(60 * (first + m), UTC)) for m in range(720)) / 60

    assert [hours(day) for day in ("2026-01-03 18:00", "2026-03-28 18:00", "2026-10-24 18:00")] == [8, 7, 9]


def test_a_whole_day_ends_at_24_and_equal_times_are_a_day() -> None:
    saturday = schedule(days=["Sat"], start="00:00", end="24:00")
    assert [saturday.holds(utc(f"2026-01-{day}")) for day in ("02 23:59", "03 00:00", "03 23:59", "04 00:00")] == [
        False,
        True,
        True,
        False,
    ]
    shifted = schedule(days=["Sat"], start="06:00", end="06:00")
    assert [shifted.holds(utc(f"2026-01-{day}")) for day in ("03 05:59", "03 06:00", "04 05:59", "04 06:00")] == [
        False,
        True,
        True,
        False,
    ]


def test_a_range_of_days_may_pass_the_end_of_the_week() -> None:
    assert schedule(days=["Sat-Mon"]).weekdays == {5, 6, 0}
    assert schedule().weekdays == set(range(7))


def test_of_several_the_greatest_minimum_and_the_least_maximum_hold() -> None:
    high = schedule(name="high", minReplicas=5, maxReplicas=9, start="00:00", end="24:00")
    low = schedule(name="low", minReplicas=3, maxReplicas=7, start="00:00", end="24:00")
    found = bounds((low, high, OFFICE), utc("2026-01-04 12:00"))
    assert (found.least, found.most, found.raised_by, found.lowered_by) == (5, 7, high, low)
    assert bounds((OFFICE,), utc("2026-01-04 12:00"))[:2] == (None, None)


def test_the_number_follows_the_schedule_and_says_so() -> None:
    policy = replace(DEFAULTS, schedules=(OFFICE, schedule(name="cap", minReplicas=None, maxReplicas=4)))
    monday, sunday = Now(utc("2026-01-05 12:00"), 0.0), Now(utc("2026-01-04 12:00"), 0.0)
    raised = decide(policy, fleet(ready()), calm(1), monday)
    assert (raised.desired, raised.decision.reason) == (2, "Scheduled")
    assert raised.decision.clamps == ("Scheduled: 1 → 2, office until 19:00 Europe/Berlin: minReplicas is 2",)
    assert (raised.limited.status, raised.limited.reason) == (True, Reason.SCHEDULED)
    assert raised.event is not None and raised.event.message.startswith("Scaled from 1 to 2: 1 → 2, office until")
    assert decide(policy, fleet(ready()), calm(1), sunday).desired == 1
    capped = decide(policy, fleet(*[ready(9, 8)] * 3), calm(3), sunday)
    assert capped.decision.clamps == ("Scheduled: 7 → 4, cap until 19:00 UTC: maxReplicas is 4",)


def test_a_schedule_never_passes_the_bounds_of_the_service() -> None:
    policy = replace(DEFAULTS, max_replicas=3, schedules=(schedule(minReplicas=5, start="00:00", end="24:00"),))
    assert decide(policy, fleet(ready()), calm(1), Now(utc("2026-01-05 12:00"), 0.0)).desired == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"timezone": "Mars/Base"}, "timezone 'Mars/Base' is not known; use a name of the IANA database"),
        ({"timezone": "../etc/passwd"}, "schedules[0].timezone"),
        ({"days": ["Mo"]}, "schedules[0].days[0]"),
        ({"start": "7:30"}, "schedules[0].start"),
        ({"end": "24:01"}, "schedules[0].end"),
        ({"minReplicas": 0}, "schedules[0].minReplicas"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused_by_its_field(given: dict[str, Any], words: str) -> None:
    one = {"name": "s", "start": "07:30", "end": "19:00", "minReplicas": 2, **given}
    spec = {"model": {"uri": "pkg://m"}, "autoscaling": {"maxReplicas": 6, "schedules": [one]}}
    with pytest.raises(InvalidService) as refusal:
        InferenceService.parse({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": spec})
    assert words in str(refusal.value)
