import pytest

from tests.pagefleet_cli.command import Shell


@pytest.fixture
def pagefleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)
