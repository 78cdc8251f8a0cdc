"""`spec.autoscaling.schedules` as types: bounds that hold on some days, between two times of a time zone."""

from collections.abc import Iterator
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, ConfigDict, Field

from pagefleet_api.agreement import Agreeing, Ordered
from pagefleet_api.schema import Shaped, joint, rules

WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_DAY = f"({'|'.join(WEEK)})"
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]"


def _known_zone(key: str) -> str:
    try:
        ZoneInfo(key)
    except (ValueError, OSError, KeyError):
        raise ValueError(
            f"timezone {key!r} is not known; use a name of the IANA database such as Europe/Berlin or UTC"
        ) from None
    return key


TimeZone = Annotated[
    str,
    Field(max_length=64),
    Shaped(
        r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$", "a name of the IANA database such as Europe/Berlin or UTC"
    ),
    AfterValidator(_known_zone),
]
Days = Annotated[str, Field(max_length=7), Shaped(f"^{_DAY}(-{_DAY})?$", "a day such as Sat, or days such as Mon-Fri")]
Start = Annotated[str, Field(max_length=5), Shaped(f"^{_TIME}$", "a time of day such as 07:30")]
End = Annotated[str, Field(max_length=5), Shaped(f"^({_TIME}|24:00)$", "a time of day such as 07:30, or 24:00")]
ScheduleName = Annotated[
    str,
    Field(max_length=63),
    Shaped(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "lower-case letters, digits and -, with a letter or digit at each end"),
]

_CHANGES_NOTHING = "autoscaling.schedules: {} changes nothing; give its minReplicas, maxReplicas or both"
_BOUNDS = Ordered("minReplicas", "maxReplicas")


class Schedule(Agreeing):
    """Bounds that hold between two times of some days."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            joint(
                "has(self.minReplicas) || has(self.maxReplicas)",
                _CHANGES_NOTHING,
                "self.name",
                field="minReplicas",
                plain=_CHANGES_NOTHING.format("one"),
            ),
            _BOUNDS.rule,
        )
    )
    name: ScheduleName = Field(description="Said in decisions.")
    timezone: TimeZone = Field("UTC", description="IANA name, for example Europe/Berlin. Default: UTC.")
    days: tuple[Days, ...] = Field(
        ("Mon-Sun",), min_length=1, max_length=7, description="Days on which it begins: Sat, or Mon-Fri. Default: all."
    )
    start: Start = Field(description="Local time at which it begins, for example 07:30.")
    end: End = Field(description="Local time at which it ends; not after the start means the next day.")
    min_replicas: int | None = Field(None, ge=1, le=10_000, description="Not fewer than so many meanwhile.")
    max_replicas: int | None = Field(None, ge=1, le=10_000, description="Not more than so many meanwhile.")

    def _refusals(self) -> Iterator[str]:
        if self.min_replicas is None and self.max_replicas is None:
            yield _CHANGES_NOTHING.format(self.name)
        yield from _BOUNDS.refusals(self.min_replicas, self.max_replicas)


def weekdays(days: tuple[str, ...]) -> frozenset[int]:
    """Numbers of the days, Monday is 0; a range may pass the week's end ("Sat-Mon")."""
    found: set[int] = set()
    for item in days:
        first, _, last = item.partition("-")
        begin, end = WEEK.index(first), WEEK.index(last or first)
        found |= {day % 7 for day in range(begin, end + 1 + (7 if end < begin else 0))}
    return frozenset(found)


def minutes(time: str) -> int:
    """Minutes since midnight: "07:30" is 450."""
    hours, _, rest = time.partition(":")
    return int(hours) * 60 + int(rest)
