"""Bounds by the clock: which schedules hold now, and what they leave of the policy's bounds."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pagefleet_api import schedules as api


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule, with its zone looked up."""

    name: str
    zone: ZoneInfo
    weekdays: frozenset[int]
    """Monday is 0; those on which it begins."""
    start_min: int
    end_min: int
    """Minutes since local midnight; not after the start means the next day."""
    least: int | None
    most: int | None

    @classmethod
    def of(cls, given: api.Schedule) -> "Schedule":
        """From the resource."""
        return cls(
            name=given.name,
            zone=ZoneInfo(given.timezone),
            weekdays=api.weekdays(given.days),
            start_min=api.minutes(given.start),
            end_min=api.minutes(given.end),
            least=given.min_replicas,
            most=given.max_replicas,
        )

    def holds(self, wall: datetime) -> bool:
        """Whether it holds at this moment, by the clock on the wall of its zone.

        A time that a zone skips counts as soon as the clock has passed it; one that comes twice counts twice.
        """
        local = wall.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        today, yesterday = local.weekday(), (local.weekday() - 1) % 7
        if self.start_min < self.end_min:
            return today in self.weekdays and self.start_min <= minute < self.end_min
        begun = today in self.weekdays and minute >= self.start_min
        return begun or (yesterday in self.weekdays and minute < self.end_min)

    @property
    def until(self) -> str:
        """Its end in words."""
        hours, minutes = divmod(self.end_min, 60)
        return f"{self.name} until {hours:02}:{minutes:02} {self.zone.key}"


class Bounds(NamedTuple):
    """What the schedules that hold now ask for; None where none says anything."""

    least: int | None = None
    most: int | None = None
    raised_by: Schedule | None = None
    lowered_by: Schedule | None = None


def bounds(schedules: tuple[Schedule, ...], wall: datetime) -> Bounds:
    """The greatest `minReplicas` and the least `maxReplicas` of those that hold."""
    holding = [schedule for schedule in schedules if schedule.holds(wall)]
    floors = [(schedule.least, schedule) for schedule in holding if schedule.least is not None]
    caps = [(schedule.most, schedule) for schedule in holding if schedule.most is not None]
    least, raised_by = max(floors, key=lambda pair: pair[0], default=(None, None))
    most, lowered_by = min(caps, key=lambda pair: pair[0], default=(None, None))
    return Bounds(least, most, raised_by, lowered_by)
