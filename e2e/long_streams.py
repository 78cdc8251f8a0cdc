"""Many long streams over a change of the fleet: all open when it begins, each to its end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from e2e.answers import Answer, Ask, summary
from e2e.exchange import Target
from e2e.load import Load, LoadPlan
from e2e.service import Service, pod_load, wait_for

STREAMS = 200
TOKENS = 40


class Ridden(NamedTuple):
    """What became of the streams, and how long the change took in seconds."""

    answers: list[Answer]
    open_at_start: int
    """Streams that had begun and were not at their end when the change began."""
    seconds: float


@contextmanager
def opened(service: Service, tokens: int = TOKENS, *, again: bool = False) -> Iterator[Load]:
    """STREAMS streams on the service's pods, all of them open. Pods may come and go while they are opened.

    With `again` each that ends is followed by another, until the load is told to end.
    """
    url = service.cluster_url()
    target = Target(url=lambda: url, model=service.name)
    requests = None if again else STREAMS
    plan = LoadPlan(target=target, ask=lambda number: _ask(number, tokens), clients=STREAMS, requests=requests)
    with Load.start(plan) as load:
        wait_for("every stream is open", lambda: _in_flight(service) == STREAMS, 60, every_s=0.1)
        yield load


def ride(service: Service, change: Callable[[], None], tokens: int = TOKENS) -> Ridden:
    """Make the change while all streams are open, and wait for everything."""
    with opened(service, tokens) as load:
        open_at_start, began_s = len(load.open_requests()), time.monotonic()
        change()
        seconds = time.monotonic() - began_s
        return Ridden(load.wait(), open_at_start, seconds)


def assert_all_whole(ridden: Ridden) -> None:
    """No stream was cut off, and each has all its tokens."""
    result = summary(ridden.answers)
    assert ridden.open_at_start >= (STREAMS if result.requests == STREAMS else STREAMS * 0.9), ridden.open_at_start
    broken = [(answer.fault, answer.detail, answer.ended_s) for answer in ridden.answers if answer.fault is not None]
    assert not broken, broken[:5]
    assert result.requests == result.answered >= STREAMS
    assert all(answer.completion_tokens == answer.asked_tokens for answer in ridden.answers)
    assert result.finish_reasons == {"length": result.requests}


def _in_flight(service: Service) -> int:
    """On all pods that answer, those on their way out too."""
    held = 0
    for pod in service.pods():
        with suppress(OSError):
            held += pod_load(pod).in_flight
    return held


def _ask(number: int, tokens: int) -> Ask:
    return Ask(f"{number}: a story, please.", tokens)
