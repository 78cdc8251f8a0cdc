"""An engine's `/metrics` as a value: the text is read once, and what is not a number is not there.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from pagefleet_operator.facts.histogram import Histogram as Histogram

MOST = 2.0**53
"""Sums of such numbers stay finite, and floats count in ones up to here."""
_WANTED_LIMIT, _LINE_LIMIT = 256 * 1024, 4096
_BUCKET, _SUM, _COUNT, _BOUND = "_bucket", "_sum", "_count", "le"


class BrokenExposition(ValueError):
    """A text that is no exposition; the message has the parser's words."""


@dataclass(frozen=True, slots=True)
class Series:
    """One sample line; the value is finite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """Samples by the name that they have on the wire (a counter's with `_total`, if it was written so)."""

    samples: Mapping[str, tuple[Series, ...]]

    def series(self, name: str, **labels: str) -> tuple[Series, ...]:
        """The series of that name that have these labels with these values, whatever others they have.

        A label without a value is one that is not there, as in PromQL.
        """
        found = self.samples.get(name, ())
        wanted = labels.items()
        return tuple(one for one in found if all(one.labels.get(label, "") == value for label, value in wanted))

    def total(self, name: str, **labels: str) -> float | None:
        """Sum over these series; None when there is none."""
        found = self.series(name, **labels)
        return sum(one.value for one in found) if found else None

    def histogram(self, family: str, **labels: str) -> Histogram | None:
        """Sum over a family's series with these labels; None when there is none, or its counts make no sense."""
        counts: dict[float, float] = {}
        for one in self.series(family + _BUCKET, **labels):
            bound = _number(one.labels.get(_BOUND))
            if bound is not None:
                counts[bound] = counts.get(bound, 0.0) + one.value
        total = self.total(family + _COUNT, **labels)
        if math.inf not in counts and total is not None:
            counts[math.inf] = total
        bounds = tuple(sorted(counts))
        try:
            return Histogram(
                bounds, tuple(counts[bound] for bound in bounds), self.total(family + _SUM, **labels) or 0.0
            )
        except ValueError:
            return None


def parse(text: str, names: Collection[str] | None = None) -> Exposition:
    """Read an exposition. Values that are not finite, or are larger than anything counts up to, are left out.

    names: read only series whose name begins with one of these; a whole text takes many times as long. Of those there
    may be 256 KiB in lines of at most 4 KiB: many times what an engine tells, and what is read in part of a second.

    Raises BrokenExposition.
    """
    wanted = None if names is None else tuple(names)
    samples: dict[str, list[Series]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(_sample_lines(text, wanted))):
            for one in family.samples:
                if abs(one.value) <= MOST:
                    samples.setdefault(one.name, []).append(Series(one.labels, float(one.value)))
    except (ValueError, IndexError) as error:
        raise BrokenExposition(str(error) or "not an exposition") from error
    return Exposition({name: tuple(series) for name, series in samples.items()})


def _sample_lines(text: str, wanted: tuple[str, ...] | None) -> Iterable[str]:
    """Lines with values. Without the comments each series keeps its name; with them the parser renames counters."""
    size = 0
    for line in text.split("\n"):
        line = line.strip()
        if line and not line.startswith("#") and (wanted is None or line.startswith(wanted)):
            size += len(line)
            if wanted is not None and (len(line) > _LINE_LIMIT or size > _WANTED_LIMIT):
                raise BrokenExposition(f"more than {_WANTED_LIMIT} characters, or than {_LINE_LIMIT} in one line")
            yield line


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
