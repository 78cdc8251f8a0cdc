"""What is counted of each round, and what all rounds say together. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.scale_downs.subjects import Engines
from e2e.answers import Answer


class Round(NamedTuple):
    """One service from one pod to many and back."""

    engines: str
    service: str
    scale_downs: int
    """Pods drained and removed, by the operator's own count."""
    aborted: int
    """Answers that were running when a drain's time was up, by the same."""
    in_flight: Sequence[int]
    """What the pods that drained had open just after they left the Service, where they could be asked."""
    requests: int
    cut: int
    """Answers that were not whole, by the client's count of their tokens."""
    retries: int
    tokens: int
    seconds: float
    faults: Sequence[str]
    """Of the first answers that were cut."""
    commit: str = "unknown"
    """What was measured."""


def counted(answers: Iterable[Answer]) -> dict[str, Any]:
    """The clients' part of a round."""
    every = list(answers)
    cut = [answer for answer in every if answer.fault is not None]
    return {
        "requests": len(every),
        "cut": len(cut),
        "retries": sum(answer.retries for answer in every),
        "tokens": sum(answer.completion_tokens or 0 for answer in every),
        "faults": [f"{answer.fault}: {answer.detail}"[:200] for answer in cut[:3]],
    }


def read(text: str) -> list[Round]:
    """Rounds as lines of JSON; what other lines say of them is left out."""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [
        Round(**{name: line[name] for name in Round._fields if name in line}) for line in lines if "service" in line
    ]


def missing(rounds: Sequence[Round], engines: Engines, wanted: int) -> int:
    """Scale-downs that are still to be made."""
    return max(wanted - sum(each.scale_downs for each in rounds if each.engines == engines), 0)


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """All rounds as one row."""
    drained = [open_requests for each in rounds for open_requests in each.in_flight]
    return {
        "work": "scale-downs",
        "scale_downs": sum(each.scale_downs for each in rounds),
        "by_engines": {
            str(kind): sum(each.scale_downs for each in rounds if each.engines == kind)
            for kind in Engines
        },
        "rounds": len(rounds),
        "aborted": sum(each.aborted for each in rounds),
        "cut": sum(each.cut for each in rounds),
        "requests": sum(each.requests for each in rounds),
        "tokens": sum(each.tokens for each in rounds),
        "retries": sum(each.retries for each in rounds),
        "drains_seen": len(drained),
        "drains_with_streams": sum(open_requests > 0 for open_requests in drained),
        "streams_on_draining_pods": sum(drained),
        "commits": sorted({each.commit for each in rounds}),
    }  # fmt: skip


def failed(row: Mapping[str, Any]) -> bool:
    """Whether any answer was lost."""
    return bool(row["aborted"] or row["cut"])
