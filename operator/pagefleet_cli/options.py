"""Numbers and times on the command line, all read in one way: what is none is told with what the option takes."""

import math
from collections.abc import Callable
from typing import Any

import typer

from pagefleet_api import duration


def time(words: str, least_s: float = 0.0) -> Any:
    """An option in seconds, given as a number or as a duration."""
    takes = f"seconds such as 90, or a duration such as 90s or 1m30s, from {least_s:g} s on"

    def seconds(text: str) -> float:
        return _within(text, _number(text, float, duration.parse), "time", takes, least_s, math.inf)

    return typer.Option(parser=lambda given: seconds(str(given)), metavar="DURATION", help=words)


def number(words: str, takes: str) -> Any:
    """An option that is a number from 0 on; `takes` says of what, with an example."""

    def read(text: str) -> float:
        return _within(text, _number(text, float), "number", f"{takes}, from 0 on", 0, math.inf)

    return typer.Option(parser=lambda given: read(str(given)), metavar="NUMBER", help=words)


def whole(words: str, takes: str, least: float = -math.inf, most: float = math.inf) -> Any:
    """An option that is a whole number; `takes` says of what."""
    end = "on" if most == math.inf else f"to {most:g}"
    bounds = "" if least == -math.inf else f" from {least:g} {end}"

    def read(text: str) -> int:
        return int(_within(text, _number(text, int), "number", f"{takes}{bounds}", least, most))

    return typer.Option(parser=lambda given: read(str(given)), metavar="INTEGER", help=words)


def _number(text: str, *readers: Callable[[str], float]) -> float | None:
    for read in readers:
        try:
            return read(text)
        except ValueError:
            continue
    return None


def _within(text: str, found: float | None, noun: str, takes: str, least: float, most: float) -> float:
    """What was found in `text`. Raises typer's own error, which names the option, for what is none or outside."""
    if found is None or not least <= found <= most or abs(found) == math.inf:
        raise typer.BadParameter(f"{text!r} is no such {noun}; write {takes}")
    return found
