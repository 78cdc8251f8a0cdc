"""Traces of requests from files: our own columns, those of public traces, and Prometheus's answers."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pagefleet_cli.errors import InputWrong
from pagefleet_cli.simulation.values import FIRST_MOMENT, Request, Trace

STDIN = "-"


_MOST_TOKENS = 16_777_216
"""As the resource's maxModelLen."""
_MOST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
_LONGEST_DAYS = 400
_MOST_REQUESTS = 50_000_000
"""What is played in less than an hour, and held in memory."""


class Means(NamedTuple):
    """Tokens of each request where a trace tells only how many there were."""

    prompt_tokens: int = 1000
    output_tokens: int = 250


class Layout(NamedTuple):
    """Columns of a kind of trace."""

    name: str
    arrival: str
    prompt: str
    output: str
    dates: bool = False
    """Arrivals are dates and times, not seconds."""
    from_first: bool = False
    """Seconds count from the first row."""


LAYOUTS = (
    Layout("Pagefleet", "arrival_s", "prompt_tokens", "output_tokens"),
    Layout("Azure LLM inference", "TIMESTAMP", "ContextTokens", "GeneratedTokens", dates=True, from_first=True),
    Layout("BurstGPT", "Timestamp", "Request tokens", "Response tokens", from_first=True),
)
"""https://github.com/Azure/AzurePublicDataset, https://github.com/HPMLL/BurstGPT."""


class _Lines(Protocol):
    """What `csv.reader` gives."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


class _Row(NamedTuple):
    line: int
    fields: Mapping[str, Any]


def read_trace(file: str, means: Means, draw: Callable[[], float]) -> Trace:
    """A CSV or JSONL file, or the JSON of a Prometheus range query for requests a second; `-` is standard input.

    draw: numbers of [0, 1), for arrivals at a rate. Raises InputWrong with file, line, column, value and the way out.
    """
    text = _text(file)
    head = text.lstrip()
    if head.startswith("{"):
        first, _, _ = head.partition("\n")
        if _json_or_none(first) is None or '"resultType"' in head[:4096]:
            return _from_prometheus(file, text, means, draw)
        return _from_rows(file, LAYOUTS[0], _json_rows(file, text))
    return _from_csv(file, text)


def _from_csv(file: str, text: str) -> Trace:
    lines = csv.reader(io.StringIO(text))
    try:
        return _from_lines(file, lines)
    except csv.Error as error:
        raise InputWrong(f"{file}: line {lines.line_num}: this is no CSV: {error}") from error


def _from_lines(file: str, lines: "_Lines") -> Trace:
    columns = [name.strip() for name in next(lines, [])]
    layout = next((layout for layout in LAYOUTS if {layout.arrival, layout.prompt, layout.output} <= {*columns}), None)
    if layout is None:
        known = "; ".join(f"{one.name}: {one.arrival},{one.prompt},{one.output}" for one in LAYOUTS)
        raise InputWrong(f"{file}: line 1: {','.join(columns)[:80]!r} has not the columns of any known trace ({known})")
    rows = (_Row(lines.line_num, dict(zip(columns, row, strict=False))) for row in lines if row)
    return _from_rows(file, layout, rows)


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputWrong(f"{file}: {error.strerror}; give a trace as CSV, JSONL or Prometheus JSON") from error
    except UnicodeDecodeError as error:
        raise InputWrong(f"{file}: this is no text: {error}") from error


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_rows(file: str, text: str) -> Iterator[_Row]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        fields = _json_or_none(line)
        if not isinstance(fields, dict):
            raise InputWrong(f"{file}: line {number}: {line[:40]!r} is no JSON object; write one a line")
        yield _Row(number, fields)


def _from_rows(file: str, layout: Layout, rows: Iterable[_Row]) -> Trace:
    found = [_request(file, layout, row) for row in rows]
    if not found:
        raise InputWrong(f"{file}: there is no request in it")
    found.sort(key=lambda request: request.arrival_s)
    first_s = found[0].arrival_s
    began = datetime.fromtimestamp(first_s, UTC) if layout.dates else FIRST_MOMENT
    if layout.from_first:
        found = [request._replace(arrival_s=request.arrival_s - first_s) for request in found]
    _check_length(file, found[-1].arrival_s)
    return Trace(tuple(found), began)


def _check_length(file: str, length_s: float) -> None:
    if length_s > _LONGEST_DAYS * 86_400:
        days = length_s / 86_400
        raise InputWrong(f"{file}: it is {days:.0f} days long; {_LONGEST_DAYS} are the most, so give a part of it")


def _request(file: str, layout: Layout, row: _Row) -> Request:
    """An answer of no tokens, as public traces have for failed requests, counts as one token."""
    read = _seconds_of_date if layout.dates else float
    arrival_s = _field(file, row, layout.arrival, read, _MOST_S, "seconds from 0 on, for example 12.5")
    tokens = f"a whole number from 0 to {_MOST_TOKENS}"
    prompt = _field(file, row, layout.prompt, int, _MOST_TOKENS, tokens)
    output = _field(file, row, layout.output, int, _MOST_TOKENS, tokens)
    return Request(arrival_s, max(prompt, 1), max(output, 1))


def _field(file: str, row: _Row, column: str, read: Callable[[Any], Any], most: float, wanted: str) -> Any:
    given = row.fields.get(column)
    try:
        value = read(given)
        if not 0 <= value <= most:
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        said = "is absent" if given is None else f"is {str(given)[:40]!r}"
        raise InputWrong(f"{file}: line {row.line}: {column} {said}; it takes {wanted}") from error
    return value


def _seconds_of_date(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _from_prometheus(file: str, text: str, means: Means, draw: Callable[[], float]) -> Trace:
    points = _rates(file, _json_or_none(text))
    began_s = points[0][0]
    _check_length(file, points[-1][0] - began_s)
    if sum(rate * (until_s - since_s) for (since_s, rate), (until_s, _) in pairwise(points)) > _MOST_REQUESTS:
        raise InputWrong(f"{file}: these are more than {_MOST_REQUESTS} requests; query a shorter range")
    arrivals: list[Request] = []
    for (since_s, rate_per_s), (until_s, _) in pairwise(points):
        arrivals += [Request(when_s - began_s, *means) for when_s in _poisson(since_s, until_s, rate_per_s, draw)]
    if not arrivals:
        raise InputWrong(f"{file}: the rate is zero all the time; query requests a second, over a busier range")
    return Trace(tuple(arrivals), datetime.fromtimestamp(began_s, UTC))


def _rates(file: str, document: Any) -> list[tuple[float, float]]:
    """(time, sum over all series), at least two."""
    try:
        sums: dict[float, float] = {}
        for series in document["data"]["result"]:
            for when_s, value in series["values"]:
                moment_s = float(when_s)
                if not 0 <= moment_s <= _MOST_S:
                    raise ValueError
                sums[moment_s] = sums.get(moment_s, 0.0) + _rate(value)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputWrong(
            f"{file}: this is neither JSONL nor the answer of Prometheus's /api/v1/query_range "
            f"(data.result[].values[] of a time and a number)"
        ) from error
    if len(sums) < 2:
        raise InputWrong(f"{file}: data.result has {len(sums)} points; a range of at least two is needed")
    return sorted(sums.items())


def _rate(text: Any) -> float:
    """Not a number, as where nothing was asked for, is no request."""
    value = float(text)
    return value if 0 <= value < math.inf else 0.0


def _poisson(since_s: float, until_s: float, rate_per_s: float, draw: Callable[[], float]) -> Sequence[float]:
    times: list[float] = []
    when_s = since_s
    while rate_per_s:
        when_s -= math.log(1 - draw()) / rate_per_s
        if when_s >= until_s:
            break
        times.append(when_s)
    return times
