"""Servers whose bytes come, but never come to an end."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet_fetch.download import Patience
from pagefleet_fetch.errors import TooSlow
from pagefleet_fetch.fetching import Request, fetch
from pagefleet_fetch.pace import Floor, Pace, within
from tests.pagefleet_fetch.models import contents
from tests.pagefleet_fetch.servers import Fault, Served, serving

BODY = b"GGUF" * 1000
DRIP = Fault(drip_s=0.01)
PATIENCE = Patience(attempts=2, first_delay_s=0.001, floor=Floor(bytes_per_s=100_000, window_s=0.1))


class Clock:
    """Each chunk takes `step_s` to come."""

    def __init__(self, step_s: float) -> None:
        self._now_s, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self._now_s += self._step_s
        return self._now_s


def test_a_server_that_sends_a_few_bytes_for_ever_is_given_up_with_its_rate(tmp_path: Path) -> None:
    with serving(Served({"small.gguf": BODY}, faults={"small.gguf": [DRIP] * 2})) as served:
        with pytest.raises(TooSlow, match=r"small\.gguf came at \d+ bytes/s for 0\.\d+ s, less than the 100000"):
            fetch(Request(uri=f"{served.address}/small.gguf", into=tmp_path / "m", patience=PATIENCE))
        first, second = served.offsets("small.gguf")
    assert first == 0 < second, "the second try goes on where the first was"
    assert not (tmp_path / "m").exists()


def test_a_server_that_was_slow_for_a_while_is_gone_on_with(tmp_path: Path) -> None:
    with serving(Served({"small.gguf": BODY}, faults={"small.gguf": [DRIP]})) as served:
        fetch(Request(uri=f"{served.address}/small.gguf", into=tmp_path / "m", patience=PATIENCE))
        assert len(served.offsets("small.gguf")) == 2
    assert contents(tmp_path / "m") == {"small.gguf": BODY}


def follow(pace: Pace, sizes: list[int]) -> list[int]:
    return [len(chunk) for chunk in pace.follow(iter([bytes(size) for size in sizes]), "it")]


def test_a_window_at_the_floor_is_enough_and_one_below_it_is_not() -> None:
    floor = Floor(bytes_per_s=100, window_s=2)
    assert follow(Pace(floor, Clock(1)), [100] * 5) == [100] * 5
    with pytest.raises(TooSlow, match="it came at 99 bytes/s for 2 s, less than the 100 bytes/s"):
        follow(Pace(floor, Clock(1)), [100, 98, 100])


def test_any_rate_will_do_where_the_floor_is_zero() -> None:
    assert follow(Pace(Floor(bytes_per_s=0, window_s=2), Clock(1)), [1] * 9) == [1] * 9


def test_files_under_way_share_the_floor() -> None:
    pace = Pace(Floor(bytes_per_s=100, window_s=2), Clock(1))
    other = pace.follow(iter([bytes(500)] * 2), "another")
    next(other)
    assert follow(pace, [50] * 4) == [50] * 4
    assert len(list(other)) == 1
    with pytest.raises(TooSlow):
        follow(pace, [50] * 4)


def test_the_time_that_the_reader_takes_is_not_the_servers() -> None:
    now_s = 0.0
    pace = Pace(Floor(bytes_per_s=100, window_s=1), lambda: now_s)
    for _ in pace.follow(iter([b"1"] * 5), "it"):
        now_s += 60


def stuck(gate: threading.Event) -> Iterator[bytes]:
    gate.wait(30)
    yield b""


def test_an_answer_that_never_is_whole_is_not_waited_for() -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError, match=r"no whole answer within 0\.02 s"):
        within(0.02, lambda: list(stuck(gate)))
    gate.set()
    assert within(30, lambda: list(stuck(gate))) == [b""]
    with pytest.raises(ZeroDivisionError):
        within(30, lambda: 1 // 0)
