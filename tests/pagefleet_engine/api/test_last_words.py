from pathlib import Path

import pytest

from pagefleet_engine import logs


@pytest.fixture
def kubelets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the kubelet would look; it is not there yet."""
    path = tmp_path / "termination-log"
    monkeypatch.setattr(logs, "TERMINATION_LOG", path)
    return path


def test_the_last_words_are_one_line_of_bounded_length(kubelets: Path) -> None:
    kubelets.touch()
    logs.say_last("first\n  second " + "x" * 9000)
    assert kubelets.read_text().startswith("first second xxx")
    assert len(kubelets.read_bytes()) == 4096


def test_outside_a_pod_nothing_is_made(kubelets: Path) -> None:
    logs.say_last("reason")
    assert not kubelets.exists()


def test_words_that_cannot_be_written_hold_nothing_up(kubelets: Path) -> None:
    kubelets.mkdir()
    logs.say_last("reason")
