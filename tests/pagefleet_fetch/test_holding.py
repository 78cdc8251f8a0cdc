"""A model that is held: there for as long as somebody says so, and missed when it is not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet_api.download import HELD
from pagefleet_fetch.collecting import Limit
from pagefleet_fetch.errors import NoSpace, Occupied, Unusable
from pagefleet_fetch.fetching import Request, fetch
from pagefleet_fetch.folder import RECORD
from pagefleet_fetch.holding import fetch_and_hold
from pagefleet_fetch.telling import Board
from tests.pagefleet_fetch.models import MODEL, contents
from tests.pagefleet_fetch.servers import Served, hub


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    with hub(MODEL) as served:
        yield served


def request(store: tuple[Served, Served], into: Path, **more: object) -> Request:
    fields: dict[str, object] = {"uri": "hf://org/name", "into": into, "environment": {"HF_ENDPOINT": store[0].address}}
    return Request(**{**fields, **more})  # type: ignore[arg-type]


def test_a_model_is_fetched_told_of_and_missed_once_a_file_is_gone(
    store: tuple[Served, Served], tmp_path: Path
) -> None:
    into, board, looks = tmp_path / "models" / "name", Board(), []

    def pause() -> None:
        looks.append((board.text(HELD) is not None, contents(into) == MODEL))
        if len(looks) == 2:
            (into / "config.json").unlink()

    with pytest.raises(Unusable, match="has lost files"):
        fetch_and_hold(request(store, into), board, pause)
    assert looks == [(True, True)] * 2
    assert board.text(HELD) is None, "nobody is told of a model that is not whole"


def test_nobody_takes_a_held_model_away_and_two_may_hold_it(store: tuple[Served, Served], tmp_path: Path) -> None:
    into, size = tmp_path / "models" / "name", sum(len(data) for data in MODEL.values())
    fetch(request(store, into))
    held = []

    def inner_pause() -> None:
        held.append("inner")
        (into / "config.json").unlink()

    def pause() -> None:
        os.utime(into / RECORD, (1, 1))
        with pytest.raises(NoSpace, match="limit"):
            fetch(request(store, into.with_name("next"), limit=Limit(size)))
        with pytest.raises(Unusable):
            fetch_and_hold(request(store, into), Board(), inner_pause)
        held.append("outer")

    with pytest.raises(Unusable):
        fetch_and_hold(request(store, into), Board(), pause)
    assert held == ["inner", "outer"]


def test_another_model_in_the_folder_is_not_told_of(store: tuple[Served, Served], tmp_path: Path) -> None:
    into, board = tmp_path / "models" / "name", Board()
    fetch(request(store, into))
    with pytest.raises(Occupied):
        fetch_and_hold(request(store, into, uri="hf://org/other"), board)
    assert not board.held
