import logging
from collections.abc import Iterator

import pytest

from tests.pagefleet_cli.command import Shell


@pytest.fixture
def pagefleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def fetcher_speaks_again() -> Iterator[None]:
    """A command quietens the fetcher in its process, which is that of other tests here."""
    yield
    logging.getLogger("pagefleet_fetch").setLevel(logging.NOTSET)
